package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/whatif/recording"
	"github.com/sluice-proxy/sluice/host/whatif/replay"
)

// An hour of a busy cluster, in virtual time.
const (
	recordedTime    = time.Hour
	recordedChanges = 100 // per second
	// recordedActive are the endpoints of which each reading, one a second, has other counters.
	recordedActive = 100
)

// printRecordings measures the size of recordings, and what it takes to write and to replay them.
func (o *options) printRecordings(ctx context.Context, out *bytes.Buffer) error {
	fmt.Fprintf(out, "\n**Recording and replay**, %s at %d changes of EndpointSlices per second, in virtual time\n\n"+
		"| Services × endpoints | readings of outcomes | size, MiB (of the state) | bytes per change | writing and generating, µs per change | reading, s | replay with `locality`, s | … against no policy, s |\n|---|---|---|---|---|---|---|---|\n",
		recordedTime, recordedChanges)
	for _, c := range []struct {
		size
		readings bool
	}{{size{1000, 10000}, false}, {size{1000, 10000}, true}} {
		if err := o.printRecording(ctx, out, c.size, c.readings); err != nil {
			return err
		}
	}
	return nil
}

func (o *options) printRecording(ctx context.Context, out *bytes.Buffer, s size, readings bool) error {
	p, done, err := o.modules.load(ctx, "locality")
	if err != nil {
		return err
	}
	defer done()
	var file bytes.Buffer
	begin := time.Now()
	state, err := record(&file, s, readings)
	if err != nil {
		return err
	}
	writing := time.Since(begin)
	timeIt := func(f func(*recording.Reader) error) (float64, error) {
		r, err := recording.NewReader(bytes.NewReader(file.Bytes()))
		if err != nil {
			return 0, err
		}
		begin := time.Now()
		err = f(r)
		return time.Since(begin).Seconds(), err
	}
	reading, err := timeIt(func(r *recording.Reader) error {
		for {
			rec, err := r.Next()
			if err != nil || rec.End {
				return err
			}
		}
	})
	if err != nil {
		return err
	}
	plugins := func(string) (policy.Plugin, error) { return p, nil }
	a := replay.Config{Plugins: plugins, Settings: planner.Settings{Policies: &policy.Set{
		Policies: map[string]*policy.Policy{"zoned": {Name: "zoned", Steps: []policy.Step{{Plugin: "locality"}}}}, Default: "zoned",
	}}}
	var took [2]float64
	for i, configs := range [][]replay.Config{{a}, {a, {Plugins: plugins}}} {
		took[i], err = timeIt(func(r *recording.Reader) error {
			result, err := replay.Replay(r, configs, replay.Options{})
			if err == nil && (len(result.Runs[0].Errors) > 0 || result.Truncated) {
				err = fmt.Errorf("replay: %v, truncated %t", result.Runs[0].Errors, result.Truncated)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	changes := recordedTime.Seconds() * recordedChanges
	text := "none"
	if readings {
		text = fmt.Sprintf("one a second, %d endpoints of 10000 with new connections", recordedActive)
	}
	fmt.Fprintf(out, "| %s | %s | %.1f (%.1f) | %.0f | %.1f | %.1f | %.1f | %.1f |\n", s, text, float64(file.Len())/(1<<20), float64(state)/(1<<20),
		float64(file.Len()-int(state))/changes, float64(writing.Microseconds())/changes, reading, took[0], took[1])
	return nil
}

// record records changes as they are in a cluster, one at a time, and returns the size of the state at the beginning.
func record(file *bytes.Buffer, s size, readings bool) (state int64, err error) {
	w := newClusterState(s)
	cluster, at := model.NewSnapshot(), time.Unix(1_700_000_000, 0)
	for _, c := range w.all() {
		cluster.Apply(c)
	}
	counters := map[model.EndpointKey]outcomes.Counters{}
	var keys []model.EndpointKey
	for _, list := range cluster.Slices {
		for _, slice := range list {
			for _, e := range slice.Endpoints {
				keys = append(keys, model.EndpointKey{Addr: netip.AddrPortFrom(e.Addr, 8080), Protocol: model.TCP})
			}
		}
	}
	e, err := recording.NewEncoder(file, recording.Header{Node: nodeName(0), Started: at}, at, cluster, recording.Keep{}, 0)
	if err != nil {
		return 0, err
	}
	if err := e.Flush(at); err != nil {
		return 0, err
	}
	state = e.Size()
	random := rand.New(rand.NewPCG(1, 2))
	const step = time.Second / recordedChanges
	for i := range int(recordedTime / step) {
		at = at.Add(step + time.Duration(random.IntN(1000)-500)*time.Microsecond)
		if err := e.Changes(at, []model.Change{w.change(random.IntN(s.services), []int{replaced, replaced, unready, readyAgain, added, removed}[random.IntN(6)])}); err != nil {
			return 0, err
		}
		if i%(5*recordedChanges) == 0 {
			if err := e.Flush(at); err != nil {
				return 0, err
			}
		}
		if !readings || i%recordedChanges != 0 {
			continue
		}
		for range recordedActive {
			k := keys[random.IntN(len(keys))]
			n := counters[k]
			n.Attempts += uint64(1 + random.IntN(20))
			n.Answered = n.Attempts
			counters[k] = n
		}
		if err := e.Reading(at, &recording.Reading{Kind: recording.Read, Interval: time.Second, Counters: counters}); err != nil {
			return 0, err
		}
	}
	return state, e.Close(at)
}

// publishRecordings measures and prints.
func (o *options) publishRecordings(ctx context.Context, out *bytes.Buffer) error {
	if err := o.printRecordings(ctx, out); err != nil {
		return err
	}
	_, err := out.WriteTo(os.Stdout)
	return err
}
