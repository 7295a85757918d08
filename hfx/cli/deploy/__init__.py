"""Write published models as folders that platforms run; check folders and servers."""

COMMANDS = {
    "bundle": "hfx.cli.deploy.bundle",
    "docker": "hfx.cli.deploy.docker",
    "compose": "hfx.cli.deploy.compose",
    "kubernetes": "hfx.cli.deploy.kubernetes",
    "kserve": "hfx.cli.deploy.kserve",
    "azureml": "hfx.cli.deploy.azureml",
    "check": "hfx.cli.deploy.check",
    "sagemaker": "hfx.cli.deploy.sagemaker",
}
