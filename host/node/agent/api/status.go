package api

import (
	"fmt"
	"strings"
	"time"
)

// Status is the output of `sluice status -o json`: the state of one agent. Times are wall times, in UTC.
type Status struct {
	Version string    `json:"version"`
	Mode    string    `json:"mode"`
	Node    string    `json:"node"`
	Zone    string    `json:"zone,omitempty"`
	Source  string    `json:"source"` // URL of the API server, or a directory of manifests
	At      time.Time `json:"at"`
	Started time.Time `json:"started"`
	// Synced is when the kernel had everything that was planned for the first time; nil: not yet.
	Synced *time.Time `json:"synced,omitempty"`
	// Configuration, Plugins and Policies are what is in force.
	Configuration Configuration `json:"configuration"`
	Plugins       []Plugin      `json:"plugins"`
	Policies      []Policy      `json:"policies"`
	Objects       *Objects      `json:"objects,omitempty"` // nil: no policy is an object
	Plan          PlanSize      `json:"plan"`
	Kernel        KernelState   `json:"kernel"`
	API           *API          `json:"api,omitempty"`       // nil: the source is a directory
	Repairs       *Repairs      `json:"repairs,omitempty"`   // nil: no other process has changed what sluice programs
	Recording     *Recording    `json:"recording,omitempty"` // nil: sluice runs without --record
	LogLevel      string        `json:"logLevel,omitempty"`
	// Failing is what is not in force as configured, Degraded what is in force only in part; each with what to look at next. See
	// Problem.
	Failing  []Problem `json:"failing"`
	Degraded []Problem `json:"degraded"`
}

// Problem is something that needs attention.
type Problem struct {
	Text string `json:"text"`
	// Next is a command or a place that shows more; "": the text says all.
	Next string `json:"next,omitempty"`
}

// Objects is what of the policies that are objects of the cluster is in force, as the node's NodeReport has it.
type Objects struct {
	Policies   int           `json:"policies"` // that the node uses, or would if a guard or a plugin let it
	NotInForce []ObjectState `json:"notInForce,omitempty"`
}

// ObjectState is why a policy is not in force.
type ObjectState struct {
	Kind      string `json:"kind"` // ServicePolicy or ClusterServicePolicy
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Reason    string `json:"reason"` // Failing, FallenBack, Invalid, NotAllowed or Pending
	Message   string `json:"message,omitempty"`
}

// PlanSize is the size of a plan. An endpoint counts once for each Service port.
type PlanSize struct {
	Services  int `json:"services"`
	Frontends int `json:"frontends"`
	Endpoints int `json:"endpoints"` // that get new connections
	Draining  int `json:"draining"`  // endpoints
}

// KernelState is how the kernel relates to the plan.
type KernelState struct {
	// InSync: everything is programmed, except for Unprogrammed frontends.
	InSync       bool       `json:"inSync"`
	LastSync     *time.Time `json:"lastSync,omitempty"` // the last time that it was, after a change
	Frontends    int        `json:"frontends"`          // programmed
	Unprogrammed int        `json:"unprogrammed,omitempty"`
	Approximated int        `json:"approximated,omitempty"` // frontends that the mode cannot represent as planned
	// Error is why the last update failed; "": it did not.
	Error string     `json:"error,omitempty"`
	Since *time.Time `json:"since,omitempty"` // of Error
}

// Recording is the state of a recording.
type Recording struct {
	File    string `json:"file"`
	Bytes   int64  `json:"bytes"`           // written since the start, compressed
	Dropped uint64 `json:"dropped"`         // changes and readings that were not recorded, because the writer was late
	Error   string `json:"error,omitempty"` // why the recording has ended; "": it has not
}

// API is the contact with the API server.
type API struct {
	Server string `json:"server"`
	// Stale are the resources that are not watched.
	Stale []StaleResource `json:"stale,omitempty"`
}

// StaleResource is a resource that is not watched.
type StaleResource struct {
	Resource string  `json:"resource"`
	Seconds  float64 `json:"seconds"` // for how long
	Reason   string  `json:"reason,omitempty"`
}

// Repairs are changes by other processes to what sluice has programmed. Each is reverted.
type Repairs struct {
	Changes   int       `json:"changes"` // since the start
	Last      time.Time `json:"last"`
	Objects   string    `json:"objects,omitempty"` // of the last one
	Processes string    `json:"processes,omitempty"`
}

// AddFailing adds something that is not in force as configured.
func (s *Status) AddFailing(text, next string) { s.Failing = append(s.Failing, Problem{text, next}) }

// AddDegraded adds something that is in force only in part.
func (s *Status) AddDegraded(text, next string) { s.Degraded = append(s.Degraded, Problem{text, next}) }

// Assess adds the problems that follow from the other fields. maxProblems bounds each list.
func (s *Status) Assess() {
	if s.Synced == nil {
		s.AddFailing("the first sync has not finished", "sluice status")
	}
	node := Node{s.Configuration, s.Plugins, s.Policies}
	for _, text := range node.problems() {
		s.AddFailing(text, "sluice config check FILE")
	}
	for _, text := range node.loading() {
		s.AddDegraded(text, "sluice status")
	}
	k := &s.Kernel
	if k.Error != "" {
		s.AddFailing("programming the kernel failed"+since(k.Since)+": "+oneLine(k.Error), "sluice check")
	}
	if k.Unprogrammed > 0 {
		s.AddFailing(fmt.Sprintf("the kernel has rejected %d frontends", k.Unprogrammed), "sluice explain -n NAMESPACE SERVICE, of the Services in the log")
	}
	if k.Approximated > 0 {
		s.AddDegraded(fmt.Sprintf("mode %s represents %d frontends only approximately", s.Mode, k.Approximated), "sluice plan")
	}
	if s.API != nil {
		for _, r := range s.API.Stale {
			text := fmt.Sprintf("%s: not watched for %s", r.Resource, time.Duration(r.Seconds*float64(time.Second)).Round(time.Second))
			if r.Reason != "" {
				text += ": " + r.Reason
			}
			s.AddDegraded(text, "the API server "+s.API.Server)
		}
	}
	if r := s.Repairs; r != nil && s.At.Sub(r.Last) < recentRepair {
		text := fmt.Sprintf("another process changed what sluice programs, the last time at %s", r.Last.Format(time.RFC3339))
		if r.Processes != "" {
			text += " (" + r.Processes + ")"
		}
		s.AddDegraded(text+"; it was repaired", "stop that process from changing "+strings.TrimSpace(r.Objects))
	}
	for _, list := range []*[]Problem{&s.Failing, &s.Degraded} {
		if more := len(*list) - maxProblems; more > 0 {
			*list = append((*list)[:maxProblems], Problem{Text: fmt.Sprintf("and %d more", more)})
		}
		if *list == nil {
			*list = []Problem{}
		}
	}
}

const (
	maxProblems  = 50
	recentRepair = time.Hour
)

func oneLine(s string) string { return strings.ReplaceAll(s, "\n", "; ") }

// Texts returns the texts of problems.
func Texts(list []Problem) (out []string) {
	for _, p := range list {
		out = append(out, p.Text)
	}
	return out
}
