package bootstrap

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func FuzzParseID(f *testing.F) {
	f.Add(newID([]string{localAddr, "10.0.0.1:5", "[::1]:7", "a.b-c_d:9"}).String())
	f.Add("gollective1.0123456789abcdef..unix")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		id, err := ParseID(text)
		if err != nil {
			require.ErrorIs(t, err, ErrConfig)
			require.True(t, id.IsZero())
			return
		}
		require.Equal(t, text, id.String(), "one text for one id")
		for _, a := range id.addrs {
			if a != localAddr {
				_, _, err := net.SplitHostPort(a)
				require.NoError(t, err)
			}
		}
	})
}

func FuzzRecords(f *testing.F) {
	m := member{incarnation: 1, host: 2, pid: 3, name: "host", addrs: []string{"@x", "10.0.0.1:5"}}
	var b bytes.Buffer
	writeRecord(&b, recordCheckIn, m.append(nil))
	f.Add(b.Bytes())
	b.Reset()
	e := &Error{Phase: PhaseRing, Rank: 2, Reporter: 1, Missing: []int{2, 3}, Err: ErrMissing, Detail: "x"}
	writeRecord(&b, recordFailed, appendError(nil, e, 4))
	f.Add(b.Bytes())
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, sent []byte) {
		_, body, err := readRecord(bytes.NewReader(sent), recordLimit(4))
		if err != nil {
			return
		}
		s := scanner{rest: body}
		if m := s.member(); s.ok() {
			require.Equal(t, body, m.append(nil))
			for _, a := range m.addrs {
				require.NotEmpty(t, a)
			}
		}
		if e, ok := decodeError(body, 4); ok {
			require.NotNil(t, e.Err)
			_ = e.Error()
			again, ok := decodeError(appendError(nil, e, 4), 4)
			require.True(t, ok)
			if len(e.Detail) <= 1024 {
				require.Equal(t, e, again)
			}
			for _, r := range e.Missing {
				require.Less(t, r, 4)
			}
		}
	})
}

// FuzzLink feeds a link's bytes to a process of a job: it must neither fail nor
// let the peer do more than end the link.
func FuzzLink(f *testing.F) {
	mark1 := []mark{{1, 1}}
	m := member{incarnation: 1, host: 2, pid: 3, name: "host", addrs: []string{"@x"}}
	f.Add(slices.Concat(digestFrame(nil), newEntry(1, 1, entryDescribe, m.append(nil), appendBytes(nil, "about")).frame))
	f.Add(slices.Concat(digestFrame(mark1), newEntry(1, 1, entryMessage, []byte("x")).frame, newEntry(1, 2, entryLeft).frame))
	f.Add(slices.Concat(digestFrame(nil), tokenFrame(&token{issuer: 1, round: 1, settled: mark1, asked: mark1}), numberFrame(frameFlush, 7)))
	f.Add(newEntry(2, 1, entryLost, []byte{0, 0, 0, 1}, []byte("gone")).frame)
	f.Add(newEntry(2, 1, entryGather, make([]byte, 8), []byte("part")).frame)
	e := &Error{Phase: PhaseRing, Rank: 2, Reporter: 1, Err: ErrTimeout}
	f.Add(newEntry(2, 1, entryFailed, appendError(nil, e, 3)).frame)
	body := appendError(nil, e, 3)
	f.Add(append(appendFrameHead(nil, frameFailed, len(body)), body...))
	f.Add([]byte{0, 0x10, 0, 0, uint8(frameEntry)})
	f.Fuzz(func(t *testing.T, sent []byte) {
		c := newControl(Config{Rank: 0, Size: 3, Logger: slog.New(slog.DiscardHandler)})
		a, b := net.Pipe()
		c.Handle(Handler{})
		c.mu.Lock()
		c.joined = len(sent)%2 == 0
		c.peers[1].addrs, c.peers[2].addrs = []string{"@gollective-nobody"}, []string{"@gollective-nobody"}
		c.addLink(1, newLink(1, a))
		c.mu.Unlock()
		go io.Copy(io.Discard, b)
		b.Write(sent)
		b.Close()
		c.shutDown()
		<-c.ended
	})
}
