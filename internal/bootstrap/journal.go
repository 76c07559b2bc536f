package bootstrap

import (
	"encoding/binary"
	"slices"
)

// journal is what a process knows of everybody's streams of entries. It is plain
// data: no connections, no clock.
//
// Invariants: have[o] counts the entries of o that were delivered here, which
// are 1..have[o] without gaps; log holds, in the order of delivery, those of
// them that are not known to be everywhere; what is not in log, every living
// process has.
//
// The log is in the order of delivery and links are in order, so an entry that
// its sender knew of before it sent another is delivered before the other,
// everywhere: news of a death never overtakes the last words of the dead that
// the messenger had heard.
type journal struct {
	have   []uint64
	stable []uint64 // entries 1..stable[o] of o are everywhere
	log    []*entry
}

// entry is one numbered message of a process.
type entry struct {
	origin int
	seq    uint64 // from 1
	kind   entryKind
	body   []byte
	frame  []byte // the whole frame, to pass on as it came; body is its end
}

type entryKind uint8

const (
	entryDescribe entryKind = 1 + iota // member, description: first of every stream
	entryMessage                       // Tell
	entryGather                        // number of the AllGather, contribution
	entryLost                          // rank, cause
	entryLeft                          // empty: no message follows
	entryFailed                        // Error: this process gives up joining
	lastEntry     = entryFailed
)

// mark says how far a stream goes.
type mark struct {
	origin uint32
	seq    uint64
}

func newJournal(size int) journal {
	return journal{have: make([]uint64, size), stable: make([]uint64, size)}
}

// next is the number of the next entry of origin.
func (j *journal) next(origin int) uint64 { return j.have[origin] + 1 }

// add takes an entry that is the next of its stream and reports whether it is:
// else it is known already, or, when gap is set, one before it is missing,
// which the order of links excludes.
func (j *journal) add(e *entry) (fresh, gap bool) {
	switch want := j.next(e.origin); {
	case e.seq < want:
		return false, false
	case e.seq > want:
		return false, true
	}
	j.have[e.origin] = e.seq
	j.log = append(j.log, e)
	return true, false
}

// digest is everything that was delivered here.
func (j *journal) digest() []mark {
	var out []mark
	for o, n := range j.have {
		if n > 0 {
			out = append(out, mark{uint32(o), n})
		}
	}
	return out
}

// missing is what a process with the given digest lacks, in order.
func (j *journal) missing(theirs []mark) []*entry {
	have := make([]uint64, len(j.have))
	for _, m := range theirs {
		have[m.origin] = m.seq
	}
	var out []*entry
	for _, e := range j.log {
		if e.seq > have[e.origin] {
			out = append(out, e)
		}
	}
	return out
}

// unsettled is how far the streams go that have entries in the log.
func (j *journal) unsettled() []mark {
	in := make(map[int]bool)
	var out []mark
	for _, e := range j.log {
		if !in[e.origin] {
			in[e.origin] = true
			out = append(out, mark{uint32(e.origin), j.have[e.origin]})
		}
	}
	return out
}

// settle drops what is everywhere and returns how many bytes of own it freed.
func (j *journal) settle(marks []mark, own int) (freed int) {
	for _, m := range marks {
		j.stable[m.origin] = max(j.stable[m.origin], m.seq)
	}
	j.log = slices.DeleteFunc(j.log, func(e *entry) bool {
		gone := e.seq <= j.stable[e.origin]
		if gone && e.origin == own {
			freed += len(e.frame)
		}
		return gone
	})
	return freed
}

// covers reports whether everything up to the marks from *from on was delivered
// here, and moves *from past those that were: have only grows.
func (j *journal) covers(marks []mark, from *int) bool {
	for *from < len(marks) && j.have[marks[*from].origin] >= marks[*from].seq {
		*from++
	}
	return *from == len(marks)
}

// token goes round the ring of the living to find out what is everywhere. Who
// has all that it asks about passes it on; back at its issuer it has been with
// everybody. It carries the answer of the round before.
type token struct {
	issuer  int
	round   uint64 // from 1; a later round of an issuer replaces an earlier
	settled []mark // everywhere, as the round before found
	asked   []mark
}

// Frames on a link: length of what follows, kind, body.
type frameKind uint8

const (
	frameEntry   frameKind = 1 + iota
	frameToken             // token
	frameDigest            // marks: the first frame each way
	frameFlush             // number: say when everything before this was delivered
	frameFlushed           // number
	frameFailed            // Error: this process's Join has failed, and it goes
	lastFrame    = frameFailed
)

const (
	frameHead = 5
	entryHead = frameHead + 4 + 8 + 1
	markBytes = 12
)

// frameLimit is the longest body of a kind, or -1.
func frameLimit(kind frameKind, size int) int {
	switch kind {
	case frameEntry:
		return entryHead - frameHead + MaxMessage + maxMemberBytes + 64
	case frameToken:
		return 4 + 8 + 4 + 4 + 2*markBytes*size
	case frameDigest:
		return 4 + markBytes*size
	case frameFlush, frameFlushed:
		return 8
	case frameFailed:
		return recordLimit(size)
	}
	return -1
}

func appendFrameHead(dst []byte, kind frameKind, body int) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(body))
	return append(dst, uint8(kind))
}

// newEntry builds the frame; the parts follow one another in the body.
func newEntry(origin int, seq uint64, kind entryKind, parts ...[]byte) *entry {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	f := appendFrameHead(make([]byte, 0, entryHead+n), frameEntry, entryHead-frameHead+n)
	f = binary.BigEndian.AppendUint32(f, uint32(origin))
	f = binary.BigEndian.AppendUint64(f, seq)
	f = append(f, uint8(kind))
	for _, p := range parts {
		f = append(f, p...)
	}
	return &entry{origin: origin, seq: seq, kind: kind, body: f[entryHead:], frame: f}
}

// decodeEntry reads a whole frame, which it keeps.
func decodeEntry(frame []byte, size int) (*entry, bool) {
	if len(frame) < entryHead {
		return nil, false
	}
	s := scanner{rest: frame[frameHead:]}
	e := &entry{origin: int(s.u32()), seq: s.u64(), kind: entryKind(s.u8()), body: s.rest, frame: frame}
	if e.origin >= size || e.seq == 0 || e.kind == 0 || e.kind > lastEntry {
		return nil, false
	}
	return e, true
}

func appendMarks(dst []byte, marks []mark) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(marks)))
	for _, m := range marks {
		dst = binary.BigEndian.AppendUint32(dst, m.origin)
		dst = binary.BigEndian.AppendUint64(dst, m.seq)
	}
	return dst
}

func (s *scanner) marks(size int) []mark {
	n := int(s.u32())
	if n > size || n*markBytes > len(s.rest) {
		s.bad = true
		return nil
	}
	out := make([]mark, n)
	for i := range out {
		out[i] = mark{s.u32(), s.u64()}
		if int(out[i].origin) >= size {
			s.bad = true
			return nil
		}
	}
	return out
}

func digestFrame(marks []mark) []byte {
	f := appendFrameHead(nil, frameDigest, 4+markBytes*len(marks))
	return appendMarks(f, marks)
}

func tokenFrame(t *token) []byte {
	f := appendFrameHead(nil, frameToken, 4+8+4+4+markBytes*(len(t.settled)+len(t.asked)))
	f = binary.BigEndian.AppendUint32(f, uint32(t.issuer))
	f = binary.BigEndian.AppendUint64(f, t.round)
	return appendMarks(appendMarks(f, t.settled), t.asked)
}

func decodeToken(body []byte, size int) (*token, bool) {
	s := scanner{rest: body}
	t := &token{issuer: int(s.u32()), round: s.u64()}
	t.settled, t.asked = s.marks(size), s.marks(size)
	return t, s.ok() && t.issuer < size && t.round > 0
}

func numberFrame(kind frameKind, n uint64) []byte {
	return binary.BigEndian.AppendUint64(appendFrameHead(nil, kind, 8), n)
}
