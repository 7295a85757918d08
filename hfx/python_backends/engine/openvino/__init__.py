"""What runs a model in OpenVINO."""
