package load

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"image/color"
	"image/png"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// drawable are figures of n cases, and of one that has no place in the chart.
func drawable(n int) []*Figures {
	var all []*Figures
	for i := range n {
		x := float64(i+1) / float64(n)
		l := &Load{Block: x, Proxy: x / 2, Rest: x / 4}
		f := &Figures{Wait: fmt.Sprintf("policy%d", i), Proxy: drivers[i%2], Idle: &Load{}, Small: l, Large: l,
			Late: &Delay{Waited: 50, Block: 50 * x, Proxy: 25 * x, Process: 80 * x}}
		all = append(all, f)
	}
	return append(all, &Figures{Wait: "spin", Proxy: "thread", Rate: 1, Slow: &Load{}})
}

func hex(c color.Color) string {
	r, g, b, _ := c.RGBA()
	return fmt.Sprintf("#%02X%02X%02X", r>>8, g>>8, b>>8)
}

// The chart is XML with a bar in each role's colour for every case and panel, and one
// in the legend, and says which cases those are.
func TestChartAsSVG(t *testing.T) {
	const cases = 5
	var out bytes.Buffer
	require.NoError(t, drawChart(&out, "x.svg", drawable(cases)))
	bars := make(map[string]int)
	var text strings.Builder
	for d := xml.NewDecoder(&out); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		switch e := token.(type) {
		case xml.StartElement:
			for _, a := range e.Attr {
				if _, fill, found := strings.Cut(a.Value, "fill:#"); found && e.Name.Local == "path" {
					bars["#"+fill[:6]]++
				}
			}
		case xml.CharData:
			text.Write(e)
			text.WriteByte('\n')
		}
	}
	for r := range rolesCount {
		assert.Equal(t, len(panels)*cases+1, bars[hex(roleColors[r])], "%s in %v", roleNames[r], bars)
		assert.Equal(t, 1, strings.Count(text.String(), roleNames[r]))
	}
	for i := range cases {
		assert.Equal(t, len(panels), strings.Count(text.String(), fmt.Sprintf("policy%d", i)))
	}
	for _, p := range panels {
		assert.Contains(t, text.String(), p.title)
	}
	assert.Equal(t, len(panels), strings.Count(text.String(), "CPU, % of one core"))
}

// The same as pixels: each role's colour covers some.
func TestChartAsPNG(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, drawChart(&out, "x.PNG", drawable(3)))
	img, err := png.Decode(&out)
	require.NoError(t, err)
	counts := make(map[string]int)
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			counts[hex(img.At(x, y))]++
		}
	}
	for r := range rolesCount {
		assert.Greater(t, counts[hex(roleColors[r])], 100, roleNames[r])
	}
}

func TestTicksAreFew(t *testing.T) {
	for most, want := range map[float64]string{
		100: "0 25 50 75 100", 112: "0 25 50 75 100", 420: "0 100 200 300 400", 1000: "0 200 400 600 800 1000",
	} {
		var got []string
		for _, tick := range ticks(most) {
			got = append(got, tick.Label)
		}
		assert.Equal(t, want, strings.Join(got, " "))
	}
}
