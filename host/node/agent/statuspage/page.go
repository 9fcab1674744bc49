// Package statuspage serves the state of an agent to browsers: Services, drains, policies and recent changes of one node. It is
// read-only.
package statuspage

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/state"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

//go:embed *.html.tmpl
var markup embed.FS

//go:embed page.css
var style []byte

//go:embed page.js
var script []byte

// Limits of answers and streams of events.
const (
	answerTimeout = 10 * time.Second // for the engine to answer
	maxStreams    = 24               // at a time
	streamLife    = 10 * time.Minute // browsers connect again
	streamPeriod  = time.Second      // between two looks at what has changed
	fullPeriod    = 5                // looks without a change before a part is rendered anyway
	writeTimeout  = 20 * time.Second // of an event
	retryMillis   = 1000             // before a browser connects again
)

// page serves the status page.
type page struct {
	agent    *state.Agent
	history  *History
	services *cached[*index]
	shadows  *cached[[]api.ServiceShadow]
	streams  chan struct{} // has an element for each stream
}

// New returns the handler of the status page.
func New(agent *state.Agent, history *History) http.Handler { return newPage(agent, history).handler() }

func newPage(agent *state.Agent, history *History) *page {
	p := &page{agent: agent, history: history, streams: make(chan struct{}, maxStreams)}
	p.services = newCached(history.Version, func(ctx context.Context) (*index, error) {
		x, err := agent.Services(ctx, "")
		if err != nil {
			return nil, err
		}
		return newIndex(x), nil
	})
	p.shadows = newCached(history.Version, agent.Shadows)
	return p
}

func (p *page) handler() http.Handler {
	mux := http.NewServeMux()
	for _, v := range []view{
		{"/{$}", "services", "Services", p.servicesView}, {"/service", "service", "", p.serviceView}, {"/drains", "drains", "Drains", p.drainsView},
		{"/policies", "policies", "Policies", p.policiesView}, {"/activity", "activity", "Activity", p.activityView},
	} {
		mux.HandleFunc("GET "+v.pattern, func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
				p.stream(w, r, &v)
				return
			}
			p.show(w, r, &v)
		})
	}
	for name, a := range assets {
		mux.HandleFunc("GET "+name, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", a.kind)
			w.Header().Set("Cache-Control", "max-age=31536000, immutable") // the name has the hash of the content
			_, _ = w.Write(a.content)                                      // an error means that the client has disconnected
		})
	}
	return guard(mux)
}

// view is one of the pages.
type view struct {
	pattern, name, title string
	// read returns what the templates NAME and NAME-live show.
	read func(context.Context, url.Values) (any, error)
}

// asset is a file of the page. Its name has the hash of its content.
type asset struct {
	kind    string
	content []byte
}

var assets = map[string]asset{
	styleName:  {"text/css; charset=utf-8", style},
	scriptName: {"text/javascript; charset=utf-8", script},
	iconName:   {"image/svg+xml", []byte(icon)},
}

const icon = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#0b6bcb"/><path d="M6 10h20M6 16h13M6 22h7" stroke="#fff" stroke-width="3.4" stroke-linecap="round"/></svg>`

var styleName, scriptName, iconName = hashed("page", style, ".css"), hashed("page", script, ".js"), hashed("icon", []byte(icon), ".svg")

func hashed(name string, content []byte, ext string) string {
	sum := sha256.Sum256(content)
	return "/" + name + "-" + hex.EncodeToString(sum[:6]) + ext
}

// document is what the frame of every page shows.
type document struct {
	Style, Script, Icon string
	View, Title         string
	Status              *api.Status
	Error               string // why there is no Body
	Body                any
}

// read reads the data of a view. Its error is part of the document.
func (p *page) read(r *http.Request, v *view) (d document, code int) {
	ctx, cancel := context.WithTimeout(r.Context(), answerTimeout)
	defer cancel()
	d = document{Style: styleName, Script: scriptName, Icon: iconName, View: v.name, Title: v.title}
	body, err := v.read(ctx, r.URL.Query())
	d.Status = p.agent.Status(ctx)
	code = http.StatusOK
	switch {
	case errors.As(err, new(state.NotFoundError)):
		d.Error, code = err.Error(), http.StatusNotFound
	case errors.Is(err, state.ErrNotSynced) || d.Status.Synced == nil && err != nil:
		d.Error, code = "The cluster has not been read yet. The page shows it as soon as it has.", http.StatusServiceUnavailable
	case err != nil:
		d.Error, code = "The node is busy: "+err.Error(), http.StatusServiceUnavailable
	default:
		d.Body = body
	}
	if s, ok := body.(*serviceBody); ok && s != nil {
		d.Title = s.Service
	} else if d.Title == "" {
		d.Title = "Service"
	}
	return d, code
}

func (p *page) show(w http.ResponseWriter, r *http.Request, v *view) {
	d, code := p.read(r, v)
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, "page", &d); err != nil {
		http.Error(w, printable.Escape(err.Error()), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Add("Vary", "Accept")
	w.WriteHeader(code)
	_, _ = w.Write(printable.Redact(b.Bytes())) // an error means that the client has disconnected
}

// stream sends the live parts of a view as server-sent events, each when it has changed.
func (p *page) stream(w http.ResponseWriter, r *http.Request, v *view) {
	select {
	case p.streams <- struct{}{}:
		defer func() { <-p.streams }()
	default:
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many pages are open", http.StatusServiceUnavailable)
		return
	}
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Time{}) // the request has been read; the stream goes on
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Add("Vary", "Accept")
	send := func(text string) bool {
		_ = c.SetWriteDeadline(time.Now().Add(writeTimeout))
		_, err := fmt.Fprint(w, text)
		return err == nil && c.Flush() == nil
	}
	if !send(fmt.Sprintf("retry: %d\n\n", retryMillis)) {
		return
	}
	end := time.NewTimer(streamLife)
	defer end.Stop()
	tick := time.NewTicker(streamPeriod)
	defer tick.Stop()
	sent, version := map[string]string{}, uint64(0)
	for looks := 0; ; looks++ {
		if now := p.history.Version(); looks == 0 || now != version || looks%fullPeriod == 0 || v.name == "drains" {
			version = now
			if text, ok := p.changes(r, v, sent); ok && !send(text) {
				return
			}
		}
		select {
		case <-r.Context().Done():
			return
		case <-end.C:
			return
		case <-tick.C:
		}
	}
}

// changes renders the live parts of a view, and returns an event with those that differ from what has been sent; false: none
// does.
func (p *page) changes(r *http.Request, v *view, sent map[string]string) (string, bool) {
	d, _ := p.read(r, v)
	parts := map[string]string{}
	for _, name := range []string{"status", "live"} {
		var b bytes.Buffer
		if err := templates.ExecuteTemplate(&b, name, &d); err != nil {
			return "", false
		}
		if text := string(printable.Redact(b.Bytes())); sent[name] != text {
			sent[name], parts[name] = text, text
		}
	}
	if len(parts) == 0 {
		return "", false
	}
	text, err := json.Marshal(parts) // in one line
	return "data: " + string(text) + "\n\n", err == nil
}

// servicesBody is the list of Services.
type servicesBody struct {
	listQuery
	Services   []*api.ServiceOverview
	Total, All int
	First      int
	Pages      int
	Namespaces []string
	Policies   []policyCount
	Columns    []column
}

// column is a heading that sorts.
type column struct {
	Name, Text, Class, Sorted string // Sorted: ascending, descending or ""
	URL                       template.URL
}

func (p *page) servicesView(ctx context.Context, v url.Values) (any, error) {
	x, err := p.services.Get(ctx)
	if err != nil {
		return nil, err
	}
	b := &servicesBody{listQuery: parseListQuery(v), All: len(x.services), Policies: x.policies}
	b.Namespaces = x.namespaces[:min(len(x.namespaces), maxOptions)]
	b.Services, b.Total = x.find(&b.listQuery)
	b.First, b.Pages = (b.Page-1)*pageSize+1, (b.Total+pageSize-1)/pageSize
	for _, c := range []column{
		{Text: "Service"}, {Name: "policy", Text: "Policy"}, {Name: "endpoints", Text: "Endpoints", Class: "n"}, {Name: "draining", Text: "Draining", Class: "n"},
	} {
		to := b.listQuery
		to.Page = 1
		if to.Sort == c.Name {
			c.Sorted = "ascending"
			if to.Descending {
				c.Sorted = "descending"
			}
			to.Descending = !to.Descending
		} else {
			to.Sort, to.Descending = c.Name, c.Class == "n"
		}
		c.URL = template.URL("/?" + to.values().Encode()) //nolint:gosec // encoded
		b.Columns = append(b.Columns, c)
	}
	return b, nil
}

// PageURL returns the URL of another page of the list.
func (b *servicesBody) PageURL(step int) template.URL {
	to := b.listQuery
	to.Page += step
	return template.URL("/?" + to.values().Encode()) //nolint:gosec // encoded
}

// Last is the number of the last Service on the page.
func (b *servicesBody) Last() int { return b.First + len(b.Services) - 1 }

// Filtered reports whether the list is not of all Services.
func (b *servicesBody) Filtered() bool {
	return b.Text != "" || b.Namespace != "" || b.Policy != "" || b.State != ""
}

func (p *page) serviceView(ctx context.Context, v url.Values) (any, error) {
	x, err := p.agent.Explain(ctx, model.Name{Namespace: v.Get("namespace"), Name: v.Get("name")}, false)
	if err != nil {
		return (*serviceBody)(nil), err
	}
	return newServiceBody(x), nil
}

func (p *page) drainsView(ctx context.Context, _ url.Values) (any, error) {
	x, err := p.agent.Drains(ctx)
	if err != nil {
		return nil, err
	}
	return newDrainsBody(x), nil
}

// policiesBody is the policies of the node, why objects are not in force, and how shadows compare.
type policiesBody struct {
	Policies   []policyRow
	NotInForce []api.ObjectState
	Shadows    []api.ServiceShadow // those that diverge the most
	More       int                 // Services with a shadow that are not listed
}

type policyRow struct {
	policyCount
	Revision   string
	Shadows    int      // Services that are compared
	Divergence *float64 // mean over them; nil: none
	Failed     int      // Services whose shadow fails
}

// maxShadows bounds the Services that are listed with their shadow.
const maxShadows = 100

func (p *page) policiesView(ctx context.Context, _ url.Values) (any, error) {
	x, err := p.services.Get(ctx)
	if err != nil {
		return nil, err
	}
	shadows, err := p.shadows.Get(ctx)
	if err != nil {
		return nil, err
	}
	b := &policiesBody{Shadows: shadows[:min(len(shadows), maxShadows)]}
	b.More = len(shadows) - len(b.Shadows)
	if of := p.agent.Status(ctx).Objects; of != nil {
		b.NotInForce = of.NotInForce
	}
	rows := map[string]*policyRow{}
	var order []string
	row := func(name string) *policyRow {
		if rows[name] == nil {
			rows[name] = &policyRow{policyCount: policyCount{Name: name}}
			order = append(order, name)
		}
		return rows[name]
	}
	for _, of := range p.agent.Node().Policies {
		if r := row(of.Name); r.Revision == "" {
			r.Revision = of.Revision
		}
	}
	for _, c := range x.policies {
		row(c.Name).policyCount = c
	}
	for i := range shadows {
		s := &shadows[i]
		r := row(s.Policy)
		if s.Failing {
			r.Failed++
		}
		if s.Divergence != nil {
			r.Shadows++
			sum := *s.Divergence
			if r.Divergence != nil {
				sum += *r.Divergence
			}
			r.Divergence = &sum
		}
	}
	for _, name := range order {
		r := rows[name]
		if r.Divergence != nil {
			mean := *r.Divergence / float64(r.Shadows)
			r.Divergence = &mean
		}
		b.Policies = append(b.Policies, *r)
	}
	return b, nil
}

// activityBody is what has happened lately.
type activityBody struct {
	Kind    string
	Entries []Entry
	Repairs *api.Repairs
}

func (p *page) activityView(_ context.Context, v url.Values) (any, error) {
	b := &activityBody{Kind: v.Get("kind")}
	switch b.Kind {
	case KindChange, KindFailure, KindRepair, KindPolicy:
	default:
		b.Kind = ""
	}
	b.Entries = p.history.Last(b.Kind)
	b.Entries = b.Entries[:min(len(b.Entries), maxShown)]
	return b, nil
}

// maxShown bounds the entries on a page.
const maxShown = 200
