"""`hfx deploy sagemaker`: published models as an Amazon SageMaker endpoint of AWS's own Triton image.

    endpoint.py     what is deployed, every value checked; limits.py what the platform refuses, as data
    container.py    the environment of the image, and the tritonserver arguments that its start script makes of it
    requests.py     the bodies of the API calls; policy.py what the execution role may do
    archive.py      model.tar.gz, equal bytes for equal models; target.py writes the folder
    instances.py    families of instances, and the cheapest of a price file
    apply.py        makes the calls, from the written folder; local.py the container's server on this machine

Only apply.py talks to the platform.
"""
