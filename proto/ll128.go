package proto

// LL128 is the protocol in between. A line is 128 bytes: 120 bytes of data and
// a 64-bit flag behind them, step+1.
//
// NCCL relies on NVLink to keep the 128 bytes of a store together. A processor
// promises no such thing: the writer stores the data first and then the flag
// (release), the reader looks at the flag first (acquire) and then takes the
// data. The flag never wraps, so nothing needs cleaning.
//
// NCCL: src/device/prims_ll128.h.
type LL128 struct{ *lined }

// NewLL128 returns the LL128 primitives between the given ends.
func NewLL128(ends Ends) *LL128 {
	return &LL128{newLined(ll128Format{}, ends)}
}

// SlotBytesLL128 is the size of a slot for payload bytes of data per step.
func SlotBytesLL128(payload int) int { return slotBytes(ll128Format{}, payload) }

const (
	ll128Line = 128
	ll128Data = 120
)

type ll128Format struct{}

func (ll128Format) lineBytes() int { return ll128Line }
func (ll128Format) payload() int   { return ll128Data }

func (ll128Format) flag(step uint64) uint64 { return step + 1 }

func (ll128Format) pack(lines, src []byte, flag uint64) { packLL128(lines, src, flag) }

func (ll128Format) unpack(dst, lines []byte, flag uint64) int { return unpackLL128(dst, lines, flag) }

// packLL128Go is lineFormat.pack, and what any faster packLL128 must equal.
func packLL128Go(lines, src []byte, flag uint64) {
	for len(src) > 0 {
		line := lines[:ll128Line]
		n := copy(line[:ll128Data], src)
		word(line[ll128Data:]).Store(flag) // release: the data are there
		lines, src = lines[ll128Line:], src[n:]
	}
}

// unpackLL128Go is lineFormat.unpack, and what any faster unpackLL128 must equal.
func unpackLL128Go(dst, lines []byte, flag uint64) int {
	done := 0
	for done < len(dst) {
		line := lines[:ll128Line]
		if word(line[ll128Data:]).Load() != flag { // acquire: before the data
			return done
		}
		done += copy(dst[done:], line[:ll128Data])
		lines = lines[ll128Line:]
	}
	return done
}

func (ll128Format) flagged(line []byte, flag uint64) bool {
	return word(line[ll128Data:]).Load() == flag
}

func (ll128Format) clean([]byte, uint64) {}
