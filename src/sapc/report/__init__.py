"""Tables and pictures, made from tasks and results alone; matplotlib is imported only where a picture is drawn."""
