package herd

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type piece struct {
	rank int
	text string
}

func TestSink(t *testing.T) {
	for _, tc := range []struct {
		name   string
		label  Label
		ranks  int
		pieces []piece
		want   string
	}{
		{"rank 0 alone is passed on byte for byte", LabelAuto, 2,
			[]piece{{0, "a\n\nb"}, {0, "c\n"}, {0, "\x00\xff"}}, "a\n\nbc\n\x00\xff"},
		{"prefixes begin when another rank writes", LabelAuto, 2,
			[]piece{{0, "a\n"}, {1, "b\n"}, {0, "c\nd\n"}}, "a\n[1] b\n[0] c\n[0] d\n"},
		{"nothing written is silence", LabelAuto, 2,
			[]piece{{1, ""}, {0, "a\n"}}, "a\n"},
		{"always", LabelAlways, 1,
			[]piece{{0, "a\nb"}}, "[0] a\n[0] b"},
		{"never", LabelNever, 3,
			[]piece{{1, "a\n"}, {0, "b\n"}, {2, "c\n"}}, "a\nb\nc\n"},
		{"prefixes are equally wide", LabelAlways, 11,
			[]piece{{9, "a\n"}, {10, "b\n"}}, "[9]  a\n[10] b\n"},
		{"empty lines are lines", LabelAlways, 2,
			[]piece{{1, "\n\n"}}, "[1] \n[1] \n"},
		{"an unfinished line is ended for another rank", LabelAuto, 2,
			[]piece{{0, "a?"}, {1, "b\n"}, {0, " c\n"}}, "a?\n[1] b\n[0]  c\n"},
		{"and goes on when nobody came between", LabelAlways, 2,
			[]piece{{1, "a"}, {1, "b"}, {1, "\nc\n"}}, "[1] ab\n[1] c\n"},
		{"two ranks end without a line break", LabelNever, 2,
			[]piece{{0, "a"}, {1, "b"}}, "a\nb"},
		{"the launcher has no prefix and silences nobody", LabelAlways, 2,
			[]piece{{1, "a"}, {nobody, "herd: b\n"}, {1, "c\n"}}, "[1] a\nherd: b\n[1] c\n"},
		{"the launcher is not another rank", LabelAuto, 2,
			[]piece{{nobody, "herd: b\n"}, {0, "c\n"}}, "herd: b\nc\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out bytes.Buffer
			s := newSink(&out, tc.label, tc.ranks, nil)
			for _, p := range tc.pieces {
				s.write(p.rank, []byte(p.text))
			}
			assert.Equal(t, tc.want, out.String())
		})
	}
}

// Whatever the pieces: taking the prefixes and the inserted line breaks away
// leaves what each rank wrote.
func TestSinkLosesNothing(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		const ranks = 3
		var out bytes.Buffer
		s := newSink(&out, LabelAlways, ranks, nil)
		var wrote [ranks]string
		for range random.IntN(40) {
			rank := random.IntN(ranks)
			var text []byte
			for range random.IntN(6) {
				text = append(text, "ab\n"[random.IntN(3)])
			}
			wrote[rank] += string(text)
			s.write(rank, text)
		}
		var shown [ranks]string
		for line := range strings.Lines(out.String()) {
			rank := int(line[1] - '0')
			require.Equal(t, prefix(rank), line[:4])
			shown[rank] += line[4:]
		}
		for rank := range ranks {
			assert.Equal(t, strings.ReplaceAll(wrote[rank], "\n", ""), strings.ReplaceAll(shown[rank], "\n", ""))
			assert.GreaterOrEqual(t, strings.Count(shown[rank], "\n"), strings.Count(wrote[rank], "\n"))
		}
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestSinkTellsOnceThatItBroke(t *testing.T) {
	var told []error
	s := newSink(failing{errors.ErrUnsupported}, LabelAuto, 2, func(err error) { told = append(told, err) })
	s.write(0, []byte("a\n"))
	s.write(1, []byte("b\n"))
	assert.Equal(t, []error{errors.ErrUnsupported}, told)
}
