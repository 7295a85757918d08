"""How a model learns a task and how well it does on held-out data, one file a kind of answer."""
