"""`hfx deploy sagemaker`: published models as an Amazon SageMaker endpoint of AWS's own Triton image.

    endpoint.py     Endpoint: the options, checked against what SageMaker refuses
    aws.py          instance types and prices, limits of a call, the image and its start script
    requests.py     the bodies of the API calls, and the policy of the execution role
    target.py       writes the folder, with model.tar.gz
    checks.py       finds mistakes in the calls of a written folder
    apply.py        makes the calls of a written folder
    local.py        runs the container's server on this machine, in a separate network (isolated.py)

Only apply.py talks to the platform.
"""
