//go:build !purego && !race

#include "textflag.h"

// The lines of LL and LL128, written and read many at a time. Nothing here waits:
// readers look at each line once and return how many leading ones have come.
// Pointers are to whole lines in a slot (LL's begin at a multiple of 16, LL128's
// of 128) and to as much payload, at any address; n, in lines, is positive.
//
// Why the other end never sees a flag without its data:
//
//   - Stores become visible in program order and loads are done in program order
//     (x86's total store order, for ordinary write-back memory). No instruction
//     here is exempt from that; streaming stores, which are, must not be used.
//   - LL needs each of a line's two words to be written and read as a whole. Intel
//     and AMD both state that on processors with AVX a MOVDQA, VEX-coded or not,
//     of 16 bytes at a multiple of 16 is one atomic access. Every access to an LL
//     line below is such a VMOVDQA (or one of 8 bytes, which always was atomic):
//     none of 32 bytes, of which no manual says how it may be divided.
//   - LL128 needs no access of more than the flag's 8 bytes to be whole. The writer
//     stores the flag after the line's data; however a wide store is divided, all of
//     it is older than the flag. The reader loads the flag first; a load of data that
//     was done too early, on the guess that the flag would fit, is done again by
//     the processor if the line was written in between.
//
// The last of these stores is not yet ordered before a later load: see lined.seal.

// func packLLAVX(lines, src *byte, n int, flag uint64)
TEXT ·packLLAVX(SB), NOSPLIT, $0-32
	MOVQ    lines+0(FP), DI
	MOVQ    src+8(FP), SI
	MOVQ    n+16(FP), CX
	MOVQ    flag+24(FP), AX
	SHRQ    $32, AX
	VMOVD   AX, X7
	VPSHUFD $0, X7, X7
	SUBQ    $8, CX
	JLT     few

eight:
	VMOVDQU    0(SI), X0
	VMOVDQU    16(SI), X1
	VMOVDQU    32(SI), X2
	VMOVDQU    48(SI), X3
	VPUNPCKLDQ X7, X0, X4
	VPUNPCKHDQ X7, X0, X5
	VMOVDQA    X4, 0(DI)
	VMOVDQA    X5, 16(DI)
	VPUNPCKLDQ X7, X1, X4
	VPUNPCKHDQ X7, X1, X5
	VMOVDQA    X4, 32(DI)
	VMOVDQA    X5, 48(DI)
	VPUNPCKLDQ X7, X2, X4
	VPUNPCKHDQ X7, X2, X5
	VMOVDQA    X4, 64(DI)
	VMOVDQA    X5, 80(DI)
	VPUNPCKLDQ X7, X3, X4
	VPUNPCKHDQ X7, X3, X5
	VMOVDQA    X4, 96(DI)
	VMOVDQA    X5, 112(DI)
	ADDQ       $64, SI
	ADDQ       $128, DI
	SUBQ       $8, CX
	JGE        eight

few:
	ADDQ $8, CX
	JZ   done

one:
	VMOVQ      (SI), X0
	VPUNPCKLDQ X7, X0, X0
	VMOVDQA    X0, (DI)
	ADDQ       $8, SI
	ADDQ       $16, DI
	DECQ       CX
	JNZ        one

done:
	RET

// func unpackLLAVX(dst, lines *byte, n int, flag uint64) (taken int)
TEXT ·unpackLLAVX(SB), NOSPLIT, $0-40
	MOVQ    dst+0(FP), DI
	MOVQ    lines+8(FP), SI
	MOVQ    n+16(FP), CX
	MOVQ    flag+24(FP), AX
	SHRQ    $32, AX
	VMOVD   AX, X7
	VPSHUFD $0, X7, X7
	SUBQ    $8, CX
	JLT     few

eight: // the flags of two lines to a register, then their data
	VMOVDQA   0(SI), X0
	VMOVDQA   16(SI), X1
	VMOVDQA   32(SI), X2
	VMOVDQA   48(SI), X3
	VMOVDQA   64(SI), X8
	VMOVDQA   80(SI), X9
	VMOVDQA   96(SI), X10
	VMOVDQA   112(SI), X11
	VSHUFPS   $0xdd, X1, X0, X4
	VSHUFPS   $0xdd, X3, X2, X5
	VSHUFPS   $0xdd, X9, X8, X12
	VSHUFPS   $0xdd, X11, X10, X13
	VPCMPEQD  X7, X4, X4
	VPCMPEQD  X7, X5, X5
	VPCMPEQD  X7, X12, X12
	VPCMPEQD  X7, X13, X13
	VPAND     X5, X4, X4
	VPAND     X13, X12, X12
	VPAND     X12, X4, X4
	VPMOVMSKB X4, AX
	CMPL      AX, $0xffff
	JNE       few
	VSHUFPS   $0x88, X1, X0, X0
	VSHUFPS   $0x88, X3, X2, X2
	VSHUFPS   $0x88, X9, X8, X8
	VSHUFPS   $0x88, X11, X10, X10
	VMOVDQU   X0, 0(DI)
	VMOVDQU   X2, 16(DI)
	VMOVDQU   X8, 32(DI)
	VMOVDQU   X10, 48(DI)
	ADDQ      $128, SI
	ADDQ      $64, DI
	SUBQ      $8, CX
	JGE       eight

few: // the rest, or up to the first of eight that has not come
	ADDQ $8, CX
	JZ   done

one:
	VMOVDQA   (SI), X0
	VPSHUFD   $0xdd, X0, X4
	VPCMPEQD  X7, X4, X4
	VPMOVMSKB X4, AX
	CMPL      AX, $0xffff
	JNE       done
	VPSHUFD   $0x88, X0, X0
	VMOVQ     X0, (DI)
	ADDQ      $16, SI
	ADDQ      $8, DI
	DECQ      CX
	JNZ       one

done:
	MOVQ n+16(FP), AX
	SUBQ CX, AX
	MOVQ AX, taken+32(FP)
	RET

// func packLL128AVX(lines, src *byte, n int, flag uint64)
TEXT ·packLL128AVX(SB), NOSPLIT, $0-32
	MOVQ lines+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ flag+24(FP), R8

one:
	VMOVDQU 0(SI), Y0
	VMOVDQU 32(SI), Y1
	VMOVDQU 64(SI), Y2
	VMOVDQU 96(SI), X3
	MOVQ    112(SI), AX
	VMOVDQA Y0, 0(DI)
	VMOVDQA Y1, 32(DI)
	VMOVDQA Y2, 64(DI)
	VMOVDQA X3, 96(DI)
	MOVQ    AX, 112(DI)
	MOVQ    R8, 120(DI)
	ADDQ    $120, SI
	ADDQ    $128, DI
	DECQ    CX
	JNZ     one

	VZEROUPPER
	RET

// func unpackLL128AVX(dst, lines *byte, n int, flag uint64) (taken int)
TEXT ·unpackLL128AVX(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ lines+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ flag+24(FP), R8

one:
	CMPQ    120(SI), R8
	JNE     done
	VMOVDQA 0(SI), Y0
	VMOVDQA 32(SI), Y1
	VMOVDQA 64(SI), Y2
	VMOVDQA 96(SI), X3
	MOVQ    112(SI), AX
	VMOVDQU Y0, 0(DI)
	VMOVDQU Y1, 32(DI)
	VMOVDQU Y2, 64(DI)
	VMOVDQU X3, 96(DI)
	MOVQ    AX, 112(DI)
	ADDQ    $128, SI
	ADDQ    $120, DI
	DECQ    CX
	JNZ     one

done:
	VZEROUPPER
	MOVQ n+16(FP), AX
	SUBQ CX, AX
	MOVQ AX, taken+32(FP)
	RET

// func storeFlag(line *byte, flag uint64)
TEXT ·storeFlag(SB), NOSPLIT, $0-16
	MOVQ line+0(FP), DI
	MOVQ flag+8(FP), AX
	MOVQ AX, 120(DI)
	RET
