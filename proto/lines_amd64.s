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
//   - LL needs each of a line's two words to be written and read as a whole. Manuals
//     promise that of accesses of 8 bytes at a multiple of 8, and, on processors with
//     AVX, of 16 at a multiple of 16. Of 32 at a multiple of 32 they say nothing, but
//     processors with AVX2 make one access of it, or two of 16 bytes; none could divide
//     a word without being made for it. Java's virtual machine relies on the same when
//     it copies arrays of words that must not be torn.
//   - LL128 needs no access of more than the flag's 8 bytes to be whole. The writer
//     stores the flag after the line's data; however a wide store is divided, all of
//     it is older than the flag. The reader loads the flag first; a load of data that
//     was done too early, on the guess that the flag would fit, is done again by
//     the processor if the line was written in between.
//
// Readers store eight bytes of each cache line back as they were, once all that is in it
// has come (claim.go): the writer has done with it, and comes back after Release.
//
// The last of these stores is not yet ordered before a later load: see lined.seal.

// func packLLAVX2(lines, src *byte, n int, flag uint64)
TEXT ·packLLAVX2(SB), NOSPLIT, $0-32
	MOVQ         lines+0(FP), DI
	MOVQ         src+8(FP), SI
	MOVQ         n+16(FP), CX
	VPBROADCASTQ flag+24(FP), Y7

head: // up to the next cache line
	TESTQ     $63, DI
	JZ        aligned
	VPMOVZXDQ (SI), X0
	VPOR      X7, X0, X0
	VMOVDQA   X0, (DI)
	ADDQ      $8, SI
	ADDQ      $16, DI
	DECQ      CX
	JNZ       head
	JMP       done

aligned:
	SUBQ $8, CX
	JLT  few

eight:
	VPMOVZXDQ 0(SI), Y0
	VPMOVZXDQ 16(SI), Y1
	VPMOVZXDQ 32(SI), Y2
	VPMOVZXDQ 48(SI), Y3
	VPOR      Y7, Y0, Y0
	VPOR      Y7, Y1, Y1
	VPOR      Y7, Y2, Y2
	VPOR      Y7, Y3, Y3
	VMOVDQA   Y0, 0(DI)
	VMOVDQA   Y1, 32(DI)
	VMOVDQA   Y2, 64(DI)
	VMOVDQA   Y3, 96(DI)
	ADDQ      $64, SI
	ADDQ      $128, DI
	SUBQ      $8, CX
	JGE       eight

few:
	ADDQ $8, CX
	JZ   done

one:
	VPMOVZXDQ (SI), X0
	VPOR      X7, X0, X0
	VMOVDQA   X0, (DI)
	ADDQ      $8, SI
	ADDQ      $16, DI
	DECQ      CX
	JNZ       one

done:
	VZEROUPPER
	RET

// func unpackLLAVX2(dst, lines *byte, n int, flag uint64) (taken int)
TEXT ·unpackLLAVX2(SB), NOSPLIT, $0-40
	MOVQ         dst+0(FP), DI
	MOVQ         lines+8(FP), SI
	MOVQ         n+16(FP), CX
	VPBROADCASTQ flag+24(FP), Y7
	VPCMPEQD     Y6, Y6, Y6
	VPSLLQ       $32, Y6, Y6    // selects the flags

head: // up to the next cache line
	TESTQ   $63, SI
	JZ      aligned
	VMOVDQA (SI), X0
	VPXOR   X7, X0, X4
	VPTEST  X6, X4
	JNZ     done
	VPSHUFD $0x88, X0, X0
	VMOVQ   X0, (DI)
	ADDQ    $16, SI
	ADDQ    $8, DI
	DECQ    CX
	JNZ     head
	JMP     done

aligned:
	SUBQ $8, CX
	JLT  few

eight:
	VMOVDQA 0(SI), Y0
	VMOVDQA 32(SI), Y1
	VMOVDQA 64(SI), Y2
	VMOVDQA 96(SI), Y3
	VPXOR   Y7, Y0, Y4
	VPXOR   Y7, Y1, Y5
	VPXOR   Y7, Y2, Y8
	VPXOR   Y7, Y3, Y9
	VPOR    Y5, Y4, Y4
	VPOR    Y9, Y8, Y8
	VPOR    Y8, Y4, Y4
	VPTEST  Y6, Y4
	JNZ     few
	VMOVQ   X0, 0(SI)
	VMOVQ   X2, 64(SI)
	VSHUFPS $0x88, Y1, Y0, Y0
	VSHUFPS $0x88, Y3, Y2, Y2
	VPERMQ  $0xd8, Y0, Y0
	VPERMQ  $0xd8, Y2, Y2
	VMOVDQU Y0, 0(DI)
	VMOVDQU Y2, 32(DI)
	ADDQ    $128, SI
	ADDQ    $64, DI
	SUBQ    $8, CX
	JGE     eight

few: // the rest, or up to the first of eight that has not come
	ADDQ $8, CX
	JZ   done

one:
	VMOVDQA (SI), X0
	VPXOR   X7, X0, X4
	VPTEST  X6, X4
	JNZ     done
	VPSHUFD $0x88, X0, X0
	VMOVQ   X0, (DI)
	ADDQ    $16, SI
	ADDQ    $8, DI
	DECQ    CX
	JNZ     one

done:
	VZEROUPPER
	MOVQ n+16(FP), AX
	SUBQ CX, AX
	MOVQ AX, taken+32(FP)
	RET

// func packLL128AVX2(lines, src *byte, n int, flag uint64)
TEXT ·packLL128AVX2(SB), NOSPLIT, $0-32
	MOVQ lines+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ flag+24(FP), R8

one: // the last two vectors overlap
	VMOVDQU 0(SI), Y0
	VMOVDQU 32(SI), Y1
	VMOVDQU 64(SI), Y2
	VMOVDQU 88(SI), Y3
	VMOVDQA Y0, 0(DI)
	VMOVDQA Y1, 32(DI)
	VMOVDQA Y2, 64(DI)
	VMOVDQU Y3, 88(DI)
	MOVQ    R8, 120(DI)
	ADDQ    $120, SI
	ADDQ    $128, DI
	DECQ    CX
	JNZ     one

	VZEROUPPER
	RET

// func unpackLL128AVX2(dst, lines *byte, n int, flag uint64) (taken int)
TEXT ·unpackLL128AVX2(SB), NOSPLIT, $0-40
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
	VMOVDQU 88(SI), Y3
	VMOVQ   X0, 0(SI)
	VMOVQ   X2, 64(SI)
	VMOVDQU Y0, 0(DI)
	VMOVDQU Y1, 32(DI)
	VMOVDQU Y2, 64(DI)
	VMOVDQU Y3, 88(DI)
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
