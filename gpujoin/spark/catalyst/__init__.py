"""Reading Catalyst plans and expressions from Python, through the gateway of a classic session."""
