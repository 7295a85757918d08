"""`hfx deploy`: published models as folders of ordinary files for Triton, containers and platforms.

    options.py      the options of each platform, as dataclasses and as command-line options
    arch.py         the processors, by docker's names, and the native library for each of them
    deployment.py   Deployment: models, device, processor, Triton release, ports and resources, all checked
    folder.py       the output folder: rendered from templates, hashed, published by one rename
    sizing.py       size and number of pods, and the metrics that an autoscaler reads
    bundle.py docker.py compose.py kubernetes.py kserve.py azureml.py    one file per target; its templates are in
                    templates/TARGET/
    sagemaker/      Amazon SageMaker: archive, API calls, role; --apply and --delete make the calls
    check.py        compares a written folder with its record
    server_check.py sends requests in the dialects of the front, for `hfx deploy check URL --through`

Only sagemaker/apply.py, server_check.py, and wheels.py (pip) use the network. No platform's tools are needed.
"""
