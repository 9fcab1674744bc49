package main

import (
	"io"
	"path"

	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/host/plugin/imageref"
	"github.com/sluice-proxy/sluice/host/plugin/scaffold"
	"github.com/sluice-proxy/sluice/host/plugin/signature"
	"github.com/sluice-proxy/sluice/sdk/manifest"
)

// pluginObject is the ServicePlugin of an image, with the fields that a user would write.
type pluginObject struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Source struct {
			Type  string `json:"type"`
			Image struct {
				Ref string `json:"ref"`
			} `json:"image"`
		} `json:"source"`
		Verify *struct {
			Key string `json:"key"`
		} `json:"verify,omitempty"`
		Use *pluginUse `json:"use,omitempty"`
	} `json:"spec"`
}

type pluginUse struct {
	Namespaces []string `json:"namespaces"`
	Settings   []string `json:"settings"`
}

// printPluginObject prints the ServicePlugin that registers an image under the last part of its name. ServicePolicies of the
// namespaces may use it, with all settings that the module says it has; without namespaces, only ClusterServicePolicies may.
func printPluginObject(w io.Writer, ref imageref.Ref, module []byte, key *signature.PrivateKey, namespaces []string) error {
	o := pluginObject{APIVersion: "sluice.dev/v1alpha1", Kind: "ServicePlugin"}
	if o.Metadata.Name = path.Base(ref.Name()); scaffold.CheckName(o.Metadata.Name) != nil {
		o.Metadata.Name = "plugin"
	}
	o.Spec.Source.Type, o.Spec.Source.Image.Ref = "Image", ref.String()
	if key != nil {
		text, err := key.Public().PEM()
		if err != nil {
			return err
		}
		o.Spec.Verify = &struct {
			Key string `json:"key"`
		}{text}
	}
	if len(namespaces) > 0 {
		o.Spec.Use = &pluginUse{namespaces, []string{}}
		if m, err := manifest.Read(module); err == nil {
			for i := range m.Settings {
				o.Spec.Use.Settings = append(o.Spec.Use.Settings, m.Settings[i].Name)
			}
		}
	}
	text, err := yaml.Marshal(&o)
	if err != nil {
		return err
	}
	_, err = w.Write(text) // which escapes what a terminal would not print
	return err
}
