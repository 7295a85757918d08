"""`hfx deploy`: published models as folders of ordinary files for Triton, containers and platforms.

    options.py      what a user chooses for a platform, with its options of the command line
    deployment.py   what is deployed: models, device, release, ports and resources, every value checked
    folder.py       the output: rendered from templates, hashed, published by one rename
    sizing.py       pods: how large, how many, and what shows that there are too few
    bundle.py docker.py compose.py kubernetes.py kserve.py azureml.py    one file a target; its templates are in
                    templates/TARGET/
    sagemaker/      endpoints of Amazon SageMaker: archive, API calls, role; made and deleted with --apply and --delete
    check.py        a written folder against its record and the rules
    server_check.py a running server against the checkpoints of its models

Nothing else here talks to a platform or needs its tools.
"""
