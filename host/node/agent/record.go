package agent

import (
	"time"

	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/recorder"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/metrics"
	"github.com/sluice-proxy/sluice/host/whatif/recording"
)

// RecordOptions say where to record what the node sees, see recorder.Options.
type RecordOptions struct {
	File     string // "": nowhere
	MaxBytes int64
	Files    int
}

// startRecording starts the recording that the options ask for.
func (a *Agent) startRecording() (err error) {
	o := a.opts.Record
	if o.File == "" {
		return nil
	}
	cfg := a.config()
	a.recorder, err = recorder.New(recorder.Options{
		File: o.File, MaxBytes: o.MaxBytes, Files: o.Files, Log: a.log,
		Header: recording.Header{Version: a.opts.Version, Node: cfg.HostnameOverride, Mode: cfg.Mode, Started: time.Now().UTC()},
	})
	return err
}

func (a *Agent) stopRecording() {
	if a.recorder != nil {
		a.recorder.Close()
	}
}

// recordNeeds sets which values of Pods and Services are recorded: those that the plugins of a configuration declare.
func (a *Agent) recordNeeds(cfg *config.Config) {
	if a.recorder != nil {
		a.recorder.SetKeep(RecordingKeep(cfg, a.plugins))
	}
}

// recordingState returns the state of the recording; nil: there is none.
func (a *Agent) recordingState() *api.Recording {
	if a.recorder == nil {
		return nil
	}
	s := a.recorder.Stats()
	out := &api.Recording{File: s.File, Bytes: s.Bytes, Dropped: s.Dropped}
	if s.Err != nil {
		out.Error = s.Err.Error()
	}
	return out
}

// recordingMetrics returns the state of the recording; nil: there is none.
func (a *Agent) recordingMetrics() *metrics.Recording {
	if a.recorder == nil {
		return nil
	}
	s := a.recorder.Stats()
	return &metrics.Recording{Bytes: s.Bytes, Dropped: s.Dropped, Failed: s.Err != nil}
}
