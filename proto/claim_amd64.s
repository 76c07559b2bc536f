//go:build !purego && !race

#include "textflag.h"

// What is stored back is what was there. Nobody else writes these lines at that time;
// a byte of each is enough, and is inside memory even where the last one ends early.

// func claimLines(memory *byte, lines int)
TEXT ·claimLines(SB), NOSPLIT, $0-16
	MOVQ memory+0(FP), SI
	MOVQ lines+8(FP), CX

one:
	MOVB (SI), AX
	MOVB AX, (SI)
	ADDQ $64, SI
	DECQ CX
	JNZ  one
	RET

// func copyClaimingAVX2(dst, slot *byte, lines int)
TEXT ·copyClaimingAVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ slot+8(FP), SI
	MOVQ lines+16(FP), CX

one:
	VMOVDQU 0(SI), Y0
	VMOVDQU 32(SI), Y1
	VMOVQ   X0, 0(SI)
	VMOVDQU Y0, 0(DI)
	VMOVDQU Y1, 32(DI)
	ADDQ    $64, SI
	ADDQ    $64, DI
	DECQ    CX
	JNZ     one

	VZEROUPPER
	RET
