"""From a trained model to what production runs."""
