"""Write published models as folders that platforms run; check folders and servers."""

COMMANDS = {
    "bundle": "hfx.cli.deploy.bundle",
    "docker": "hfx.cli.deploy.docker:docker",
    "compose": "hfx.cli.deploy.docker:compose",
    "kubernetes": "hfx.cli.deploy.kubernetes:kubernetes",
    "kserve": "hfx.cli.deploy.kubernetes:kserve",
    "azureml": "hfx.cli.deploy.azureml",
    "check": "hfx.cli.deploy.check",
    "sagemaker": "hfx.cli.deploy.sagemaker",
}
