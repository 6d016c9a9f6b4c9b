"""The folder that goes on the path of public programs: it holds their ``cerebras`` package."""
