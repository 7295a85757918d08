"""`hfx deploy sagemaker`: published models as an Amazon SageMaker endpoint of AWS's own Triton image.

    endpoint.py     what is deployed, every value checked by what the platform refuses
    aws.py          instances and their prices, bounds of a call, the image: its environment and start script
    requests.py     the bodies of the API calls, and what the execution role may do
    target.py       writes the folder, with model.tar.gz
    apply.py        makes the calls, from the written folder
    local.py        the container's server on this machine, in a network of its own (isolated.py)

Only apply.py talks to the platform.
"""
