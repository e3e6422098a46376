"""How fast Esper is and how much memory it takes, beside plain PyTorch in the same run."""
