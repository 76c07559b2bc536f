package handshake

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	refused = OwnVerdict
	aBody   = "who and whom."
)

// terms are of a protocol whose bodies are 13 bytes that don't begin with zero.
func terms() Terms {
	return Terms{
		Magic: "GOLLBOOT", Version: 1, Body: 13, Job: 0x1234, Secret: []byte("a secret of the job"),
		Sensible: func(body []byte) bool { return body[0] != 0 },
		Refusals: []string{"can't stand the dialler"},
	}
}

// pipe is both ends of a connection, with the system's buffers.
func pipe(t testing.TB) (net.Conn, net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	b, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	return a, b
}

func TestBothSidesProveTheSecret(t *testing.T) {
	wrong := terms()
	wrong.Secret = []byte("another")
	otherJob, later := wrong, terms()
	otherJob.Job++
	later.Version++
	for _, tc := range []struct {
		name             string
		dialler          Terms
		verdict          Verdict
		diallerErr, lErr error
	}{
		{"both know it", terms(), Welcome, nil, nil},
		{"the dialler does not", wrong, Welcome, ErrStranger, io.EOF},
		{"refused with a proof", terms(), refused, ErrStranger, nil},
		{"another job", otherJob, Welcome, ErrStranger, ErrStranger},
		{"another version", later, Welcome, ErrVersion, ErrVersion},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := pipe(t)
			listener := terms()
			done := make(chan error, 1)
			go func() {
				body, raw, err := listener.Receive(b)
				if err == nil && string(body) != aBody {
					err = fmt.Errorf("got %q", body)
				}
				if err == nil {
					err = listener.Answer(b, raw, tc.verdict)
				}
				b.Close()
				done <- err
			}()
			v, err := tc.dialler.Greet(a, []byte(aBody))
			a.Close()
			require.ErrorIs(t, err, tc.diallerErr)
			if tc.diallerErr == nil || tc.verdict != Welcome {
				require.Equal(t, tc.verdict, v)
			}
			require.ErrorIs(t, <-done, tc.lErr)
		})
	}
}

// A recorded dialler can't be replayed: the listener's nonce is new.
func TestReplayedProofsAreRefused(t *testing.T) {
	terms := terms()
	listen := func(conn net.Conn) error {
		_, raw, err := terms.Receive(conn)
		if err == nil {
			err = terms.Answer(conn, raw, Welcome)
		}
		conn.Close()
		return err
	}
	a, b := pipe(t)
	done := make(chan error, 1)
	go func() { done <- listen(b) }()
	var sent bytes.Buffer
	_, err := terms.Greet(struct {
		io.Reader
		io.Writer
	}{a, io.MultiWriter(a, &sent)}, []byte(aBody))
	require.NoError(t, err)
	require.NoError(t, <-done)
	a, b = pipe(t)
	go func() { done <- listen(b) }()
	a.Write(sent.Bytes())
	io.Copy(io.Discard, a)
	require.ErrorIs(t, <-done, ErrStranger)
}

// Nor can a listener's answer be given to another dialler, or a dialler's message be
// turned round.
func TestReplayedAnswersAreRefused(t *testing.T) {
	terms := terms()
	a, b := pipe(t)
	var answered bytes.Buffer
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, raw, err := terms.Receive(b)
		if err == nil {
			terms.Answer(struct {
				io.Reader
				io.Writer
			}{b, io.MultiWriter(b, &answered)}, raw, Welcome)
		}
		b.Close()
	}()
	_, err := terms.Greet(a, []byte(aBody))
	require.NoError(t, err)
	<-done
	_, err = terms.Greet(&said{Reader: &answered}, []byte(aBody))
	require.ErrorIs(t, err, ErrStranger)
}

func TestRaceTakesTheFirstThatAnswers(t *testing.T) {
	one, other := net.Pipe()
	defer other.Close()
	tried := make(chan string, 3)
	conn, err := Race(context.Background(), []string{"refuses", "answers", "late"}, func(ctx context.Context, addr string) (net.Conn, error) {
		tried <- addr
		if addr == "answers" {
			return one, nil
		}
		return nil, errors.New(addr)
	})
	require.NoError(t, err)
	require.Equal(t, net.Conn(one), conn)
	require.Equal(t, "refuses", <-tried)
	require.Equal(t, "answers", <-tried)
	one.Close()
	_, err = Race(context.Background(), []string{"a", "b"}, func(ctx context.Context, addr string) (net.Conn, error) {
		return nil, map[string]error{"a": fmt.Errorf("%w: someone else", ErrStranger), "b": io.EOF}[addr]
	})
	require.ErrorIs(t, err, ErrStranger, "the answer that says most")
}

// said is a connection whose far end says what it says.
type said struct {
	io.Reader
	wrote bytes.Buffer
}

func (s *said) Write(b []byte) (int, error) { return s.wrote.Write(b) }

func FuzzHello(f *testing.F) {
	terms := terms()
	f.Add(append(terms.Hello([]byte(aBody), new([NonceBytes]byte)), make([]byte, MACBytes)...))
	f.Add([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
	f.Add([]byte(terms.Magic))
	f.Fuzz(func(t *testing.T, sent []byte) {
		s := &said{Reader: bytes.NewReader(sent)}
		_, raw, err := terms.Receive(s)
		if err != nil {
			require.LessOrEqual(t, s.wrote.Len(), AnswerBytes)
			if s.wrote.Len() > 0 {
				require.Equal(t, make([]byte, MACBytes), s.wrote.Bytes()[AnswerBytes-MACBytes:], "no proof for strangers")
			}
			return
		}
		require.Error(t, terms.Answer(s, raw, Welcome), "nobody guesses the proof of a fresh nonce")
	})
}

func FuzzAnswer(f *testing.F) {
	terms := terms()
	for v := Welcome; v <= refused; v++ {
		f.Add(append(terms.answer(v, new([NonceBytes]byte)), make([]byte, MACBytes)...))
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		v, err := terms.Greet(&said{Reader: bytes.NewReader(sent)}, []byte(aBody))
		require.Error(t, err)
		require.Contains(t, []Verdict{0, WrongVersion, WrongJob}, v, "what needs a proof is not believed without")
	})
}

// FuzzGate sends bytes to a listener that serves.
func FuzzGate(f *testing.F) {
	terms := terms()
	f.Add([]byte(terms.Magic), uint8(3))
	f.Add(terms.Hello([]byte(aBody), new([NonceBytes]byte)), uint8(0))
	f.Fuzz(func(t *testing.T, sent []byte, cut uint8) {
		g := NewGate(GateConfig{Log: slog.New(slog.DiscardHandler), Terms: terms,
			Enter: func(c net.Conn, body []byte) { t.Errorf("let in: %q", body) }})
		a, b := net.Pipe()
		g.Admit(b)
		a.SetDeadline(time.Now().Add(time.Second))
		go io.Copy(io.Discard, a)
		at := min(int(cut), len(sent))
		a.Write(sent[:at])
		a.Write(sent[at:])
		a.Close()
		g.Close()
	})
}
