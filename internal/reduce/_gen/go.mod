module github.com/gollective/gollective/internal/reduce/_gen

go 1.26
