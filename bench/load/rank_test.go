package load

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// However the lines are cut into pieces, what is heard is the same.
func TestListenerHearsWholeLines(t *testing.T) {
	var text []byte
	for _, m := range []message{
		{Phase: phaseIdle}, {Phase: phaseLate},
		{Sample: &Sample{Rank: 1, Cores: 3}}, {Sample: &Sample{Rank: 0, Phases: map[string]*Phase{phaseLate: {Events: make([]Usage, 9)}}}},
	} {
		line, err := json.Marshal(m)
		require.NoError(t, err)
		text = append(append(text, line...), '\n')
	}
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewSource(seed))
	for range 50 {
		var phases []string
		l := &listener{phase: func(name string) { phases = append(phases, name) }}
		for rest := text; len(rest) > 0; {
			n := min(1+random.Intn(300), len(rest))
			written, err := l.Write(rest[:n])
			require.NoError(t, err)
			require.Equal(t, n, written)
			rest = rest[n:]
		}
		assert.Equal(t, []string{phaseIdle, phaseLate}, phases)
		told, err := l.told(2)
		require.NoError(t, err)
		assert.Equal(t, 3, told[1].Cores)
		assert.Len(t, told[0].Phases[phaseLate].Events, 9)
	}
}

func TestListenerRefusesNonsense(t *testing.T) {
	l := &listener{}
	_, err := fmt.Fprintln(l, "hello")
	require.ErrorContains(t, err, `a rank says "hello"`)

	for name, ranks := range map[string][]int{
		"rank 1 has not told what it measured":                {0},
		"rank 0 of 2 has told what it measured, once too":     {0, 0, 1},
		"rank 2 of 2 has told what it measured, once too":     {2},
		"rank -1 of 2 has told what it measured, once too of": {-1, 0, 1},
	} {
		l := &listener{}
		for _, r := range ranks {
			l.samples = append(l.samples, &Sample{Rank: r})
		}
		_, err := l.told(2)
		require.ErrorContains(t, err, name)
	}
}

func TestARankRefusesACaseThatIsNone(t *testing.T) {
	for _, text := range []string{"", "spin", `{"Wait":"lazy","Ranks":2}`} {
		require.Error(t, Rank(t.Context(), text, nil), text)
	}
}
