package proto

import "github.com/gollective/gollective/transport"

// SlotBytesSimple is the size of a slot for payload bytes of data per step.
func SlotBytesSimple(payload int) int { return wholeLines(payload) }

// slotBytes is a header line and the lines of payload bytes.
func slotBytes(f lineFormat, payload int) int {
	lines := 1 + (payload+f.payload()-1)/f.payload()
	return wholeLines(lines * f.lineBytes())
}

func wholeLines(bytes int) int {
	return (bytes + transport.Line - 1) / transport.Line * transport.Line
}
