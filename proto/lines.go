package proto

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport"
)

// lined is what LL and LL128 have in common: data travels in lines that carry
// their own flags, so the reader follows the writer line by line and no counter
// says that a slot is full. A chunk takes one slot:
//
//		header line, data line 0, data line 1, …
//
//	 1. wait for a free slot in every FIFO sent to, and write its header line;
//	 2. wait for the header line in every FIFO received from, and compare it;
//	 3. batch by batch: unpack the lines that have come, reduce, pack;
//	 4. count the slots sent, release the slots received.
//
// NCCL: LLGenericOp in src/device/prims_ll.h, GenericOp in prims_ll128.h.
type lined struct {
	fan
	format lineFormat
	batch  int // bytes of payload handled at a time, whole lines and elements

	unpacked [][]byte // per FIFO received from: one batch of payload
	packed   []byte   // one batch of the result, where no output holds it
	headers  []headerLine
	next     lineFlag
	sealed   atomic.Uint64
	named    [8]byte // the operation's header, as a line carries it
	received [8]byte // the header line at hand
}

var _ Primitives = (*lined)(nil)

// lineFormat is a line layout. Its methods work on whole lines from the start of
// lines on; flag is what a line of the step at hand carries.
type lineFormat interface {
	lineBytes() int
	payload() int
	// flag is the mark of a line of the given step.
	flag(step uint64) uint64
	// pack writes src into as many lines as it takes. A reader that sees a
	// line's flag has its data; nothing more is promised (see lined.seal).
	pack(lines, src []byte, flag uint64)
	// unpack copies the leading lines that carry flag into dst and returns
	// how many bytes of dst are done.
	unpack(dst, lines []byte, flag uint64) int
	// flagged reports whether the first line carries flag.
	flagged(lines []byte, flag uint64) bool
	// clean rewrites lines that the step did not need, where stale flags
	// could be taken for new ones after a wrap-around.
	clean(lines []byte, step uint64)
}

func newLined(format lineFormat, ends Ends) *lined {
	const batchLines = 64 // of LL128; 7680 bytes are whole elements of any type, and little
	l := &lined{
		fan:    newFan(ends),
		format: format,
		batch:  batchLines * 120,
	}
	l.unpacked = make([][]byte, len(ends.From))
	l.headers = make([]headerLine, len(ends.From))
	for i, e := range ends.From {
		l.headers[i] = headerLine{end: e, format: format}
	}
	return l
}

// Begin implements Primitives. A chunk is one slot: there is nothing to round.
func (l *lined) Begin(op Operation) {
	l.begin(op)
	binary.LittleEndian.PutUint64(l.named[:], op.Header)
}

func (l *lined) Send(in []byte) error                { return l.step(send, in, nil) }
func (l *lined) SendFromOutput(out []byte) error     { return l.step(sendFromOutput, nil, out) }
func (l *lined) Recv(out []byte) error               { return l.step(recv, nil, out) }
func (l *lined) CopySend(in, out []byte) error       { return l.step(copySend, in, out) }
func (l *lined) RecvCopySend(out []byte) error       { return l.step(recvCopySend, nil, out) }
func (l *lined) RecvReduceSend(in []byte) error      { return l.step(recvReduceSend, in, nil) }
func (l *lined) RecvReduceCopy(in, out []byte) error { return l.step(recvReduceCopy, in, out) }
func (l *lined) RecvReduceCopySend(in, out []byte) error {
	return l.step(recvReduceCopySend, in, out)
}

// Next implements Primitives.
func (l *lined) Next([]byte) spin.Condition {
	if len(l.to) > 0 {
		return l.to[0].Credit(1)
	}
	return &l.headers[0]
}

// step moves one chunk.
func (l *lined) step(v verb, in, out []byte) error {
	if v.has(toFIFO) {
		if err := l.open(); err != nil {
			return err
		}
	}
	total := max(len(in), len(out))
	used := l.format.lineBytes() * (1 + (total+l.format.payload()-1)/l.format.payload())
	if v.has(fromFIFO) {
		if err := l.admit(used); err != nil {
			return err
		}
	}
	batch := l.batch
	if l.untouched(v) {
		batch = total // nothing goes through scratch
	}
	for at := 0; at < total; at += batch {
		end := min(at+batch, total)
		if err := l.pass(v, part(in, at, end), part(out, at, end), at); err != nil {
			return err
		}
	}
	if v.has(toFIFO) {
		for _, e := range l.to {
			l.format.clean(e.Slot(1)[used:], e.Step())
		}
		l.seal()
		for _, e := range l.to {
			e.Advance(l.op.Header, used)
		}
	}
	if v.has(fromFIFO) {
		for _, e := range l.from {
			e.Release(1)
		}
	}
	return nil
}

// seal makes the lines stored before it visible before anything that is loaded
// after it, as SendEnd.Advance requires of the last store to a slot: it looks for
// a sleeping reader, and a reader that goes to sleep looks for lines once more. The
// atomic stores of the Go twins would do, but assembly packs lines with plain ones,
// which x86 lets a later load overtake. An atomic store to any word keeps it from
// that (it is an XCHG, a full fence), once per step instead of once per line.
func (l *lined) seal() { l.sealed.Store(0) }

// open waits for a free slot in every FIFO sent to and writes the header lines.
func (l *lined) open() error {
	for _, e := range l.to {
		if err := l.op.Waiter.Until(e.Credit(1)); err != nil {
			return err
		}
		l.format.pack(e.Slot(1), l.named[:], l.format.flag(e.Step()))
	}
	return nil
}

// admit waits for the header line in every FIFO received from, and, where a proxy
// brings the slots, for the used bytes of the whole slot.
func (l *lined) admit(used int) error {
	for i, e := range l.from {
		if err := l.op.Waiter.Until(&l.headers[i]); err != nil {
			return err
		}
		l.format.unpack(l.received[:], e.Slot(1), l.format.flag(e.Step()))
		if err := l.check(e.Peer(), binary.LittleEndian.Uint64(l.received[:])); err != nil {
			return err
		}
		if _, err := l.landed(e, used); err != nil {
			return err
		}
	}
	return nil
}

// pass moves one batch, or what is untouched, whose payload begins at byte at of the chunk.
func (l *lined) pass(v verb, in, out []byte, at int) error {
	n := max(len(in), len(out))
	lineBytes := l.format.lineBytes()
	offset := lineBytes * (1 + at/l.format.payload())

	// What only passes through to the output is unpacked right there.
	l.slots, l.destinations = l.slots[:0], l.destinations[:0]
	result := l.result(v, in, out)
	if v.has(fromFIFO) {
		for i, e := range l.from {
			dst := result
			if v.has(fromInput) {
				dst = scratch(&l.unpacked[i], l.batch)[:n]
			}
			if err := l.read(e, dst, offset); err != nil {
				return err
			}
			l.slots = append(l.slots, dst)
		}
	}
	if v.has(fromInput) && !l.untouched(v) {
		l.destinations = append(l.destinations, result)
		l.move(v, in, out)
	}
	if v.has(toFIFO) {
		for _, e := range l.to {
			l.format.pack(e.Slot(1)[offset:], result, l.format.flag(e.Step()))
		}
	}
	return nil
}

// untouched reports whether v packs or unpacks the caller's memory and does nothing else.
func (l *lined) untouched(v verb) bool {
	return v == send && !l.scales() || v == sendFromOutput || v == recv
}

// result is the memory of what v makes of a batch.
func (l *lined) result(v verb, in, out []byte) []byte {
	switch {
	case v == send && !l.scales():
		return in
	case v.has(toOutput), v == sendFromOutput:
		return out
	}
	return scratch(&l.packed, l.batch)[:len(in)]
}

// read fills dst from the lines at offset of e's slot, waiting for those that have not
// come yet: each time for the last of a batch, since a reader at the writer's heels takes
// the line away that is being written. If others are missing even then, which no writer
// here causes, it waits for one after the other.
func (l *lined) read(e *transport.RecvEnd, dst []byte, offset int) error {
	flag, slot := l.format.flag(e.Step()), e.Slot(1)
	awaited := 0
	for done := 0; ; {
		done += l.format.unpack(dst[done:], slot[offset+l.lineOf(done):], flag)
		if done == len(dst) {
			return nil
		}
		missing := done
		if done >= awaited {
			awaited = min(done+l.batch, len(dst))
			missing = awaited - 1
		}
		l.next = lineFlag{end: e, format: l.format, line: slot[offset+l.lineOf(missing):], flag: flag}
		if err := l.op.Waiter.Until(&l.next); err != nil {
			return err
		}
	}
}

// lineOf is where the line of byte at of a payload begins.
func (l *lined) lineOf(at int) int { return at / l.format.payload() * l.format.lineBytes() }

// headerLine is the condition that the header line of the next step has come.
type headerLine struct {
	end    *transport.RecvEnd
	format lineFormat
}

func (h *headerLine) Ready() bool {
	if h.end.Carried() {
		return h.end.Filled(1).Ready()
	}
	return h.format.flagged(h.end.Slot(1), h.format.flag(h.end.Step()))
}
func (h *headerLine) Peer() int          { return h.end.Peer() }
func (h *headerLine) Arm(p *spin.Parker) { h.end.Arm(p) }
func (h *headerLine) Disarm()            { h.end.Disarm() }

// lineFlag is the condition that one line carries its flag. A sleeping reader is
// woken when the whole slot is written (SendEnd.Advance).
type lineFlag struct {
	end    *transport.RecvEnd
	format lineFormat
	line   []byte
	flag   uint64
}

func (f *lineFlag) Ready() bool        { return f.format.flagged(f.line, f.flag) }
func (f *lineFlag) Peer() int          { return f.end.Peer() }
func (f *lineFlag) Arm(p *spin.Parker) { f.end.Arm(p) }
func (f *lineFlag) Disarm()            { f.end.Disarm() }

// word views the first eight bytes of a line as a word shared with the other end.
func word(line []byte) *atomic.Uint64 { return &transport.Words(line[:8])[0] }
