"""Reading a playbook's script file without running it: one kind of fault a module, each a function of the text."""
