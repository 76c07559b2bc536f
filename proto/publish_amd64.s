//go:build !purego && !race

#include "textflag.h"

// func publish(word *uint64, value uint64)
// Stores leave a processor in order on amd64: a plain one is a release.
TEXT ·publish(SB), NOSPLIT, $0-16
	MOVQ word+0(FP), AX
	MOVQ value+8(FP), BX
	MOVQ BX, (AX)
	RET
