[inputs: ["{mix,.formatter}.exs", "{lib,test,examples}/**/*.{ex,exs}"], line_length: 110]
