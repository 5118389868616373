"""Charts, drawn on the server as SVG. Horizontal positions are in percent, so a chart is as wide as its place."""
