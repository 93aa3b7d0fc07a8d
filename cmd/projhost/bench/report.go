package bench

import (
	"slices"
	"time"
)

// Report is what a run has measured.
type Report struct {
	Driver   string    `json:"driver"`
	Server   string    `json:"server"`
	Events   int       `json:"events"`
	Accounts int       `json:"accounts"`
	Rounds   int       `json:"rounds"`
	Go       string    `json:"go"`
	System   string    `json:"system"`
	CPUs     int       `json:"cpus"`
	Results  []Result  `json:"results,omitempty"`
	Plugins  []Plugin  `json:"plugins,omitempty"`
	Append   []Append  `json:"append,omitempty"`
	Latency  []Latency `json:"latency,omitempty"`
	Idle     *Idle     `json:"idle,omitempty"`
	Hosts    *Hosts    `json:"hosts,omitempty"`
	NotRun   []string  `json:"not_run,omitempty"`
}

// Result is one contender's figures.
type Result struct {
	Name      string `json:"name"`
	What      string `json:"what"`
	Events    int    `json:"events"`
	PerSecond Spread `json:"events_per_second"`
	// Ratio is the speed beside that of the best native baseline, the median of
	// the rounds; 0 where that did not run.
	Ratio float64 `json:"ratio_to_native,omitempty"`
	// Factor is the speed beside that of the loop of single transactions.
	Factor float64 `json:"factor_over_loop,omitempty"`
	// CPUMicros is the processors' time an event, of the whole process.
	CPUMicros      float64 `json:"cpu_us_per_event,omitempty"`
	CPURatio       float64 `json:"cpu_ratio_to_native,omitempty"` // the baseline's time beside this one
	BytesPerEvent  float64 `json:"bytes_per_event"`
	AllocsPerEvent float64 `json:"allocs_per_event"`
}

// Spread is a median with its extremes.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

func spread(values []float64) Spread {
	return Spread{median(values), slices.Min(values), slices.Max(values)}
}

func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// each gives one figure of a contender's runs, in order.
func each(runs []meter, f func(m *meter) float64) []float64 {
	out := make([]float64, len(runs))
	for i := range runs {
		out[i] = f(&runs[i])
	}
	return out
}

// beside divides round by round and takes the median, so that a machine that
// changes its speed between rounds does not show.
func beside(a, b []float64) float64 {
	if len(a) == 0 || len(b) == 0 {
		return 0
	}
	out := make([]float64, min(len(a), len(b)))
	for i := range out {
		if b[i] > 0 {
			out[i] = a[i] / b[i]
		}
	}
	return median(out)
}

func perSecond(events int, m *meter) float64 { return float64(events) / m.wall.Seconds() }

// summarise turns the samples into results, in the order of the contenders.
func (b *run) summarise(contenders []contender) {
	if b.Rounds%2 == 1 {
		slices.Reverse(contenders) // the last round was run backwards
	}
	speeds := map[string][]float64{}
	var best, loop string
	for i := range contenders {
		c := &contenders[i]
		speeds[c.name] = each(b.samples[c.name], func(m *meter) float64 { return perSecond(c.events, m) })
		if c.native && (best == "" || median(speeds[c.name]) > median(speeds[best])) {
			best = c.name
		}
		if c.name == "loop" {
			loop = c.name
		}
	}
	micros := func(m *meter) float64 { return float64(m.cpu) / float64(time.Microsecond) }
	for i := range contenders {
		c := &contenders[i]
		runs, events := b.samples[c.name], float64(c.events)
		s := speeds[c.name]
		cpu := each(runs, func(m *meter) float64 { return micros(m) / events })
		b.report.Results = append(b.report.Results, Result{
			Name: c.name, What: c.what, Events: c.events,
			PerSecond:      spread(s),
			Ratio:          beside(s, speeds[best]),
			Factor:         beside(s, speeds[loop]),
			CPUMicros:      median(cpu),
			CPURatio:       beside(each(b.samples[best], func(m *meter) float64 { return micros(m) / float64(b.Events) }), cpu),
			BytesPerEvent:  median(each(runs, func(m *meter) float64 { return float64(m.bytes) / events })),
			AllocsPerEvent: median(each(runs, func(m *meter) float64 { return float64(m.allocs) / events })),
		})
	}
}
