package proto

import "github.com/gollective/gollective/internal/spin"

// In execution traces, waiting for lines shows as waiting for data.
var (
	_ spin.Named = (*headerLine)(nil)
	_ spin.Named = (*lineFlag)(nil)
)

// What implements spin.Named.
func (*headerLine) What() string { return "data" }

// What implements spin.Named.
func (*lineFlag) What() string { return "data" }
