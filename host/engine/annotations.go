package engine

import (
	"time"

	"github.com/sluice-proxy/sluice/host/core/planner"
)

// maxAnnotationLines bounds how many errors in the annotations of Services are logged in a minute: their owners can change them
// all the time. Those of a step that are not logged are counted in one line.
const maxAnnotationLines = 60

// annotationLog bounds the log of errors in annotations.
type annotationLog struct {
	since time.Time // begin of the minute
	lines int       // in it
}

// logAnnotations logs which annotations of Services are not in force.
func (e *Engine) logAnnotations(step *planner.Result, now time.Time) {
	l := &e.annotations
	if now.Sub(l.since) >= time.Minute {
		*l = annotationLog{since: now}
	}
	dropped := 0
	log := func(message string, err error) {
		if l.lines >= maxAnnotationLines {
			dropped++
			return
		}
		l.lines++
		e.Log.Warn(message, "err", err)
	}
	for _, err := range step.ChoiceErrors {
		log("the annotation of a Service chooses no policy", err)
	}
	for _, err := range step.SettingsErrors {
		log("settings of a Service are not in force; the last good ones or those of its policy are", err)
	}
	if dropped > 0 && l.lines == maxAnnotationLines {
		l.lines++ // once a minute
		e.Log.Warn("annotations of more Services are not in force; further ones are not logged in this minute, see sluice explain", "annotations", dropped)
	}
}
