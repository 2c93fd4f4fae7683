"""What an exchanged byte costs."""
