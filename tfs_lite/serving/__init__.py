"""The lifecycle assembled: from options to models that serve. No asyncio, no web, no transport."""
