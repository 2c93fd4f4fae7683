"""Runs a query by Spark alone and with gpujoin, and shows where the time goes."""
