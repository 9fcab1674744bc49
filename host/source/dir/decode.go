package dir

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/util/strictyaml"
)

func (d *document) addProblem(object, field string, err error) {
	d.problems.add(source.Problem{Object: object, Field: field, Err: err})
}

// decode decodes the objects of a document from well-formed JSON.
func (d *document) decode(raw jsontext.Value) {
	if !raw.IsValid() { // it has duplicate keys or invalid UTF-8
		tree, twice, more := strictyaml.ParseJSON(raw)
		for _, path := range twice {
			d.addProblem("", path, errors.New("duplicate key: the last one is used"))
		}
		d.problems.moreErrors += more
		raw, _ = json.Marshal(tree) // there is no error: it comes from JSON
	}
	d.decodeItem(raw, "", "")
}

// decodeItem decodes one object, or the items of a list.
func (d *document) decodeItem(raw jsontext.Value, path, implied string) {
	var head struct {
		APIVersion any            `json:"apiVersion"`
		Kind       any            `json:"kind"`
		Metadata   jsontext.Value `json:"metadata"`
		Items      jsontext.Value `json:"items"`
	}
	var meta struct {
		Namespace any `json:"namespace"`
		Name      any `json:"name"`
	}
	if raw.Kind() == 'n' {
		return
	}
	if jsonv2.Unmarshal(raw, &head) != nil {
		d.incomplete = true
		d.addProblem("", path, fmt.Errorf("%s is not an object", describe(raw)))
		return
	}
	_ = jsonv2.Unmarshal(head.Metadata, &meta) // what is wrong with it is reported when the object is decoded
	version, _ := head.APIVersion.(string)
	kind, _ := head.Kind.(string)
	if version == "" && kind == "" && implied != "" {
		version, kind, _ = strings.Cut(implied, " ")
	}
	var name model.Name
	name.Namespace, _ = meta.Namespace.(string)
	name.Name, _ = meta.Name.(string)
	id := version + " " + kind
	item, isList := listOf(id)
	d.incomplete = d.incomplete || kind == "" || name.Name == "" && !isList
	switch {
	case kind == "":
		d.addProblem("", strictyaml.JoinPath(path, "kind"), errors.New("missing or not a string: the object is not used"))
	case isList:
		d.decodeList(head.Items, strictyaml.JoinPath(path, "items"), item)
	case kinds[id] != nil:
		d.decodeObject(raw, id, name)
	default:
		for known := range kinds {
			if v, k, _ := strings.Cut(known, " "); k == kind {
				d.addProblem(objectTitle(kind, name), "apiVersion", fmt.Errorf("%q is not supported, only %q", version, v))
				return
			}
		}
		d.problems.add(source.Problem{Err: fmt.Errorf("%s is not supported: objects of this kind are ignored", strings.TrimSpace(id)), Warning: true})
	}
}

// listOf returns the kind of which a kind is the typed list, "" for List.
func listOf(id string) (item string, isList bool) {
	if id == "v1 List" {
		return "", true
	}
	item, isList = strings.CutSuffix(id, "List")
	return item, isList && kinds[item] != nil
}

func (d *document) decodeList(raw jsontext.Value, path, implied string) {
	var items []jsontext.Value
	if raw != nil && jsonv2.Unmarshal(raw, &items) != nil {
		d.addProblem("", path, fmt.Errorf("%s is not a list", describe(raw)))
	}
	for i, it := range items {
		d.decodeItem(it, path+"["+strconv.Itoa(i)+"]", implied)
	}
}

// decodeObject decodes and converts an object of a supported kind.
func (d *document) decodeObject(raw []byte, id string, name model.Name) {
	_, kind, _ := strings.Cut(id, " ")
	switch kind {
	case "Node", "Namespace", "ServiceCIDR", "ServicePlugin", "ClusterServicePolicy":
		name.Namespace = ""
	default:
		name.Namespace = cmp.Or(name.Namespace, "default")
	}
	if err := checkName(name); err != nil {
		d.addProblem(objectTitle(kind, name), "metadata", err)
		return
	}
	o := &object{key: key{kind, name}}
	kinds[id](raw, o)
	d.objects = append(d.objects, o)
}

var validName = regexp.MustCompile(`^[a-z0-9.-]{1,253}$`)

// checkName accepts the names that the API server does. They are used in rulesets, logs and metrics.
func checkName(n model.Name) error {
	for _, s := range []string{n.Name, cmp.Or(n.Namespace, "none")} {
		if !validName.MatchString(s) {
			return fmt.Errorf("%.300q is not a name of at most 253 lowercase letters, digits, '-' and '.'", s)
		}
	}
	return nil
}

func describe(raw jsontext.Value) string {
	tree, _, _ := strictyaml.ParseJSON(raw)
	return strictyaml.Describe(tree)
}
