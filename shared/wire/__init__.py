"""What crosses a wire, or is the same in every process's life. Imports no torch and no service."""
