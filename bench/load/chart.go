package load

import (
	"fmt"
	"image/color"
	"io"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// The chart has a panel per phase, in each a group of bars per case, in each a bar per
// role.

// panel is one phase: how much of a core each role of a case took, from 0 to 100.
type panel struct {
	title string
	value func(f *Figures, r role) float64
}

type role int

const (
	roleBlock role = iota
	roleProxy
	roleRest
	rolesCount
)

var roleNames = [rolesCount]string{"block", "proxy thread", "rest of the process"}

// Colours that differ in brightness, too: for all eyes, and for grey printers.
var roleColors = [rolesCount]color.Color{
	color.RGBA{0x1f, 0x4e, 0x79, 0xff},
	color.RGBA{0xe0, 0x7b, 0x39, 0xff},
	color.RGBA{0xb8, 0xbf, 0xc6, 0xff},
}

var panels = []panel{
	{fmt.Sprintf("idle: %d communicators, nobody calls", idleComms), func(f *Figures, r role) float64 { return f.Idle.role(r) }},
	{"active: allreduces of 4 B back to back", func(f *Figures, r role) float64 { return f.Small.role(r) }},
	{"active: allreduces of 16 MiB back to back", func(f *Figures, r role) float64 { return f.Large.role(r) }},
	{fmt.Sprintf("waiting: the last rank is %d ms late", lateBy.Milliseconds()), func(f *Figures, r role) float64 { return f.Late.role(r) }},
}

func (l *Load) role(r role) float64 { return 100 * [rolesCount]float64{l.Block, l.Proxy, l.Rest}[r] }

func (d *Delay) role(r role) float64 {
	rest := max(0, d.Process-d.Block-d.Proxy)
	return 100 * [rolesCount]float64{d.Block, d.Proxy, rest}[r] / d.Waited
}

const (
	chartWidth  = 20 * vg.Centimeter
	panelHeight = 6 * vg.Centimeter
	legendSpace = 0.9 * vg.Centimeter
	barWidth    = 0.45 * vg.Centimeter
	pngDPI      = 144
	headroom    = 1.12 // for numbers above bars
)

// chartFormats are what a chart's file name may end in.
var chartFormats = []string{".svg", ".png"}

// drawChart writes the chart of the cases that went through all of the panels'
// phases, in the format that the file's name asks for.
func drawChart(w io.Writer, name string, all []*Figures) error {
	height := vg.Length(len(panels))*panelHeight + legendSpace
	var canvas interface {
		vg.CanvasSizer
		io.WriterTo
	}
	switch strings.ToLower(filepath.Ext(name)) {
	case ".svg":
		canvas = vgsvg.New(chartWidth, height)
	case ".png":
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(chartWidth, height), vgimg.UseDPI(pngDPI))}
	default:
		return fmt.Errorf("%s is no chart; accepted: names that end in %s", name, strings.Join(chartFormats, " or "))
	}
	var shown []*Figures
	for _, f := range all {
		if f.Rate == 0 {
			shown = append(shown, f)
		}
	}
	var plots [][]*plot.Plot
	for i := range panels {
		p, err := panels[i].plot(shown)
		if err != nil {
			return err
		}
		plots = append(plots, []*plot.Plot{p})
	}
	page := draw.New(canvas)
	tiles := draw.Tiles{Rows: len(plots), Cols: 1, PadY: 3 * vg.Millimeter, PadLeft: 2 * vg.Millimeter, PadRight: 2 * vg.Millimeter, PadBottom: 2 * vg.Millimeter}
	for i, row := range plot.Align(plots, tiles, draw.Crop(page, 0, 0, 0, -legendSpace)) {
		plots[i][0].Draw(row[0])
	}
	if err := drawLegend(draw.Crop(page, 2*vg.Millimeter, 0, 0, -2*vg.Millimeter)); err != nil {
		return err
	}
	_, err := canvas.WriteTo(w)
	return err
}

func sans(size vg.Length) font.Font {
	return font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
}

func (n panel) plot(cases []*Figures) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = n.title
	p.Title.TextStyle.Font = sans(11)
	p.Y.Label.Text = "CPU, % of one core"
	p.Y.Label.TextStyle.Font, p.Y.Tick.Label.Font, p.X.Tick.Label.Font = sans(9), sans(9), sans(9)
	grid := plotter.NewGrid()
	grid.Vertical.Color = nil
	grid.Horizontal.Color = color.Gray{0xdd}
	p.Add(grid)
	var labels []string
	for _, f := range cases {
		labels = append(labels, f.Wait+"\n"+f.Proxy)
	}
	most := 0.0
	for r := range rolesCount {
		values := make(plotter.Values, len(cases))
		for i, f := range cases {
			values[i] = n.value(f, r)
			most = max(most, values[i])
		}
		bars, err := plotter.NewBarChart(values, barWidth)
		if err != nil {
			return nil, err
		}
		bars.Color = roleColors[r]
		bars.LineStyle.Width = 0
		bars.Offset = (vg.Length(r) - vg.Length(rolesCount-1)/2) * barWidth
		numbers, err := numbered(cases, r, values, bars.Offset)
		if err != nil {
			return nil, err
		}
		p.Add(bars, numbers)
	}
	p.NominalX(labels...)
	p.X.Min, p.X.Max = -0.5, float64(len(cases))-0.5
	p.Y.Min, p.Y.Max = 0, max(100, most)*headroom // the same scale wherever it suffices
	p.Y.Tick.Marker = plot.ConstantTicks(ticks(p.Y.Max))
	return p, nil
}

// numbered writes the values above their bars.
func numbered(cases []*Figures, r role, values plotter.Values, offset vg.Length) (*plotter.Labels, error) {
	var at plotter.XYLabels
	for i, v := range values {
		text := fmt.Sprintf("%.0f", v)
		switch {
		case r == roleProxy && !cases[i].proxied():
			text = "" // there is none
		case v < 0.05:
			text = "0"
		case v < 9.95:
			text = fmt.Sprintf("%.1f", v)
		}
		at.XYs = append(at.XYs, plotter.XY{X: float64(i), Y: v})
		at.Labels = append(at.Labels, text)
	}
	labels, err := plotter.NewLabels(at)
	if err != nil {
		return nil, err
	}
	labels.Offset = vg.Point{X: offset, Y: vg.Millimeter / 2}
	for i := range labels.TextStyle {
		labels.TextStyle[i].Font = sans(7)
		labels.TextStyle[i].XAlign = draw.XCenter
	}
	return labels, nil
}

// ticks are at every 25 %, or further apart where that would be many.
func ticks(most float64) []plot.Tick {
	step := 25.0
	for most/step > 8 {
		step *= 2
	}
	var all []plot.Tick
	for v := 0.0; v <= most+1e-9; v += step {
		all = append(all, plot.Tick{Value: v, Label: fmt.Sprintf("%.0f", v)})
	}
	return all
}

// drawLegend puts the roles beside each other at the top.
func drawLegend(c draw.Canvas) error {
	for r := range rolesCount {
		bars, err := plotter.NewBarChart(plotter.Values{0}, barWidth)
		if err != nil {
			return err
		}
		bars.Color = roleColors[r]
		bars.LineStyle.Width = 0
		entry := plot.NewLegend()
		entry.Top, entry.Left = true, true
		entry.TextStyle.Font = sans(9)
		entry.ThumbnailWidth = barWidth
		entry.XOffs = vg.Length(r) * 4 * vg.Centimeter
		entry.Add(roleNames[r], bars)
		entry.Draw(c)
	}
	return nil
}
