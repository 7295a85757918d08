"""`--quantize`: encoder.py rewrites traced graphs, generator.py has the weight formats of decode graphs.

Both take int8 by rows from generator.py; balance.py evens out what int8 activations would lose.
"""
