"""How results show themselves: tables as HTML, figures without pyplot."""
