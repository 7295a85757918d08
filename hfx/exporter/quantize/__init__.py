"""`--quantize`: encoder.py rewrites the traced graph of a BERT, generator.py has the weight formats of a GPT-2."""
