"""How much memory pipelines take, under several budgets."""
