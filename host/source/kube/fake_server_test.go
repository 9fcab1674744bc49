package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/sluice-proxy/sluice/host/api/gatewayapi"
	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
)

// object is an API object of a fakeServer.
type object interface {
	metav1.Object
	runtime.Object
}

// change is a change of an object.
type change struct {
	version int
	kind    string // ADDED, MODIFIED, DELETED
	path    string
	old     object // nil when it was added
	latest  object // in its last state when it was deleted
}

// fakeServer implements the part of the API server's protocol that reflectors use, with injected faults. As in the real
// one, selectors turn updates into additions and deletions, a streamed list ends with a bookmark, and a resource version
// that is too old is gone.
type fakeServer struct {
	t    testing.TB
	http *httptest.Server

	mu            sync.Mutex
	version       int
	oldest        int // watches from an older version get 410 Gone
	objects       map[string]map[string]object
	log           []change
	changed       chan struct{} // closed by each change
	endWatch      chan struct{} // closed to end the watches that there are
	breakMidEvent bool          // they end in the middle of an event
	requests      []string
	accepts       []string // of each
	events        []eventsv1.Event

	noStreams           bool                               // does not support streamed lists
	status              map[string]int                     // by path: respond with this status
	brokenStreams       map[string]int                     // by path: so many streamed lists end halfway
	truncatedLists      map[string]int                     // by path: so many protobuf lists end halfway
	unreachable         bool                               // close connections without a response
	unreachableRequests int                                // so many requests get no response
	fail                func(r *http.Request) (status int) // 0: serve it
}

func newFakeServer(t testing.TB) *fakeServer {
	f := &fakeServer{t: t, version: 1, objects: map[string]map[string]object{}, changed: make(chan struct{}), endWatch: make(chan struct{}),
		// Without the kinds of sluice.dev.
		status: map[string]int{"serviceplugins": 404, "servicepolicies": 404, "clusterservicepolicies": 404, "tcproutes": 404, "udproutes": 404}, brokenStreams: map[string]int{}, truncatedLists: map[string]int{}}
	f.http = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(func() {
		f.endWatches()
		f.http.CloseClientConnections()
		f.http.Close()
	})
	return f
}

func (f *fakeServer) client() *Client {
	c, err := newClient(&rest.Config{Host: f.http.URL, QPS: -1})
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

func pathOf(o runtime.Object) string {
	switch v := o.(type) {
	case *gatewayapi.Route:
		return strings.ToLower(v.Kind) + "s"
	case *corev1.Service:
		return "services"
	case *discoveryv1.EndpointSlice:
		return "endpointslices"
	case *corev1.Node:
		return "nodes"
	case *corev1.Pod:
		return "pods"
	case *networkingv1.ServiceCIDR:
		return "servicecidrs"
	case *corev1.Namespace:
		return "namespaces"
	case *v1alpha1.EndpointLoad:
		return "endpointloads"
	}
	panic(fmt.Sprintf("%T", o))
}

// put creates or updates objects.
func (f *fakeServer) put(objects ...object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range objects {
		path, key := pathOf(o), o.GetNamespace()+"/"+o.GetName()
		o = o.DeepCopyObject().(object)
		f.version++
		o.SetResourceVersion(strconv.Itoa(f.version))
		if f.objects[path] == nil {
			f.objects[path] = map[string]object{}
		}
		was := f.objects[path][key]
		f.objects[path][key] = o
		f.log = append(f.log, change{f.version, "", path, was, o})
	}
	f.notifyWatches()
}

// remove deletes an object.
func (f *fakeServer) remove(path, key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.objects[path][key]
	if was == nil {
		return
	}
	f.version++
	last := was.DeepCopyObject().(object)
	last.SetResourceVersion(strconv.Itoa(f.version))
	delete(f.objects[path], key)
	f.log = append(f.log, change{f.version, "DELETED", path, was, last})
	f.notifyWatches()
}

func (f *fakeServer) notifyWatches() { close(f.changed); f.changed = make(chan struct{}) }

// endWatches ends all watches.
func (f *fakeServer) endWatches() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.endWatch)
	f.endWatch, f.breakMidEvent = make(chan struct{}), false
}

// breakEvent ends all watches in the middle of an event.
func (f *fakeServer) breakEvent() {
	f.mu.Lock()
	f.breakMidEvent = true
	close(f.endWatch)
	f.endWatch = make(chan struct{})
	f.mu.Unlock()
}

// expireHistory makes older resource versions unavailable, as after a restart.
func (f *fakeServer) expireHistory() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	f.oldest = f.version
}

func (f *fakeServer) update(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// requestCount counts requests whose method and URL contain all parts.
func (f *fakeServer) requestCount(parts ...string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, r := range f.requests {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(r, p) }) {
			n++
		}
	}
	return n
}

// fullLists counts requests of reflectors for whole resources: lists, and watches that begin with one. Lists of any state without
// a limit are Load's.
func (f *fakeServer) fullLists(paths ...string) (n int) {
	for _, path := range paths {
		n += f.requestCount("GET", path) - f.requestCount("GET", path, "watch=") + f.requestCount("GET", path, "sendInitialEvents")
		n -= f.requestCount("GET", path, "resourceVersion=0") - f.requestCount("GET", path, "resourceVersion=0", "limit=")
	}
	return n
}

func (f *fakeServer) serve(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	path, q := parts[len(parts)-1], r.URL.Query()
	f.mu.Lock()
	f.requests = append(f.requests, r.Method+" "+r.URL.String())
	f.accepts = append(f.accepts, r.Header.Get("Accept"))
	status, down := f.status[path], f.unreachable || f.unreachableRequests > 0
	f.unreachableRequests = max(0, f.unreachableRequests-1)
	if f.fail != nil && status == 0 {
		status = f.fail(r)
	}
	noStreams := f.noStreams
	f.mu.Unlock()
	streams := q.Get("sendInitialEvents") == "true"
	switch {
	case down:
		panic(http.ErrAbortHandler)
	case status != 0:
		refuse(w, status, "")
	case streams && noStreams:
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	case r.Method == http.MethodPost:
		f.create(w, r)
	case q.Get("watch") != "":
		f.watch(w, r, path, streams)
	default:
		f.list(w, r, path, selector(r))
	}
}

// create stores an Event.
func (f *fakeServer) create(w http.ResponseWriter, r *http.Request) {
	var e eventsv1.Event
	if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
		f.t.Error(err)
	}
	f.mu.Lock()
	f.events = append(f.events, e)
	f.mu.Unlock()
	e.TypeMeta = metav1.TypeMeta{APIVersion: "events.k8s.io/v1", Kind: "Event"}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(e)
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	if reason == "" {
		reason = map[int]metav1.StatusReason{404: metav1.StatusReasonNotFound, 403: metav1.StatusReasonForbidden, 410: metav1.StatusReasonExpired,
			500: metav1.StatusReasonInternalError, 503: metav1.StatusReasonServiceUnavailable, 401: metav1.StatusReasonUnauthorized}[code]
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(&metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: reason, Code: int32(code), Message: "injected failure"})
}

func (f *fakeServer) list(w http.ResponseWriter, r *http.Request, path string, selects func(object) bool) {
	as, listType := view(r), path
	if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList") {
		listType += " metadata"
	}
	asProtobuf := protobufLists[listType] != nil && strings.HasPrefix(r.Header.Get("Accept"), runtime.ContentTypeProtobuf)
	f.mu.Lock()
	items := []runtime.Object{}
	for _, o := range f.objects[path] {
		if selects(o) {
			items = append(items, as(o))
		}
	}
	at := f.version
	f.mu.Unlock()
	version, kind := kindOf(as(example(path)))
	if asProtobuf {
		raw := protobufList(f.t, listType, items, at)
		f.mu.Lock()
		if f.truncatedLists[path] > 0 {
			f.truncatedLists[path]--
			raw = raw[:len(raw)/2]
		}
		f.mu.Unlock()
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		_, _ = w.Write(raw)
		return
	}
	meta := map[string]any{"resourceVersion": strconv.Itoa(at)}
	if limit, _ := strconv.Atoi(r.URL.Query().Get("limit")); limit > 0 && limit < len(items) {
		meta["remainingItemCount"], meta["continue"] = len(items)-limit, "more"
		items = items[:limit]
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": version, "kind": kind + "List", "items": items, "metadata": meta})
}

func (f *fakeServer) watch(w http.ResponseWriter, r *http.Request, path string, streams bool) {
	selects, as := selector(r), view(r)
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	send := func(kind string, o runtime.Object) {
		_ = json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": o})
		w.(http.Flusher).Flush()
	}
	f.mu.Lock()
	gone := !streams && from < f.oldest
	if gone {
		f.mu.Unlock()
		refuse(w, http.StatusGone, "")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	var first []object
	if streams {
		for _, o := range f.objects[path] {
			if selects(o) {
				first = append(first, o)
			}
		}
		from = f.version
	}
	half := streams && f.brokenStreams[path] > 0
	if half {
		f.brokenStreams[path]--
	}
	cut := f.endWatch
	f.mu.Unlock()
	for i, o := range first {
		if half && i >= len(first)/2 {
			return
		}
		send("ADDED", as(o))
	}
	if half {
		return
	}
	if streams {
		send("BOOKMARK", f.bookmark(as, path, from, map[string]string{metav1.InitialEventsAnnotationKey: "true"}))
	}
	w.(http.Flusher).Flush()
	for {
		f.mu.Lock()
		var news []change
		for _, e := range f.log {
			if e.version > from && e.path == path {
				news = append(news, e)
			}
		}
		at, wake := f.version, f.changed
		f.mu.Unlock()
		for _, e := range news {
			was, is := selects(e.old), e.kind != "DELETED" && selects(e.latest)
			switch {
			case is && was:
				send("MODIFIED", as(e.latest))
			case is:
				send("ADDED", as(e.latest))
			case was:
				send("DELETED", as(e.latest))
			}
		}
		from = at
		select {
		case <-r.Context().Done():
			return
		case <-cut:
			f.mu.Lock()
			torn := f.breakMidEvent
			f.mu.Unlock()
			if torn {
				_, _ = w.Write([]byte(`{"type": "MODIFIED", "object": {"kind": "Ser`))
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			}
			return
		case <-wake:
		}
	}
}

func (f *fakeServer) bookmark(as func(runtime.Object) runtime.Object, path string, version int, annotations map[string]string) runtime.Object {
	o := example(path)
	o.SetResourceVersion(strconv.Itoa(version))
	o.SetAnnotations(annotations)
	return as(o)
}
