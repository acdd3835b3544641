//! A run as one page: verdict, tables, plots, every sample; nothing loaded from anywhere.

use std::fmt::Write as _;

use crate::markdown::{figures, time};
use crate::{Met, Run, chart, verdict};

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:1040px;margin:2em auto;\
padding:0 1em;color:#222;background:#fff}h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.25em .6em;\
border-bottom:1px solid #ddd;text-align:left;vertical-align:top}p.note,span.note{color:#666}\
svg{max-width:100%;height:auto}div.wide{overflow-x:auto}td.yes{background:#d9f2e4}\
td.no{background:#fbdcd3}td.none{background:#f3f3f3}div.verdict{border:1px solid #ccc;\
padding:.2em 1em;border-radius:6px;background:#fafafa}";

/// How to read the page, for somebody who has not read the documentation.
const READING: &str = "Ours and what it is measured against take turns within a round, so that \
both find the same machine; the ratio is of the same round each. A figure is the median of the \
rounds with the least and the most. The verdict is by the median; \"close\" means that the target \
is within the spread. The figures themselves depend on how busy the machine is, the ratios much \
less.";

/// Text between tags.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            c => safe.push(c),
        }
    }
    safe
}

fn part(title: &str, note: &str, content: &str) -> String {
    let note = if note.is_empty() {
        String::new()
    } else {
        format!("<p class=\"note\">{}</p>", escape(note))
    };
    format!("<h2>{}</h2>{note}{content}", escape(title))
}

impl Run {
    /// The page. It is well-formed XML behind its first line.
    #[must_use]
    pub fn html(&self) -> String {
        let mut body = format!("<p class=\"note\">{}</p>", escape(&self.circumstances()));
        body += "<div class=\"verdict\">";
        for (title, sentences) in verdict(self).parts() {
            let _ = write!(body, "<p><b>{title}</b></p><ul>");
            for sentence in sentences {
                let _ = write!(body, "<li>{}</li>", escape(sentence));
            }
            body += "</ul>";
        }
        body += "</div>";
        body += &part("Targets", READING, &self.html_table());
        if !self.bars.is_empty() {
            let note = "Instructions are counted by callgrind over two engines in one thread, both \
                        ends together. The time is that of the thread of an end while ours is \
                        measured; whoever waits polls, so that its own share contains all waiting.";
            body += &part("Where the work goes", note, &chart::bars(&self.bars));
        }
        for plot in &self.plots {
            body += &part(&plot.title, &plot.note, &chart::plot(plot));
        }
        body += &part("Machine", "", &self.html_facts());
        let note = "In the order of the rounds; the peer's after the slash.";
        body += &part("Every sample", note, &self.html_samples());
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
             <title>Benches of xroce</title><style>{STYLE}</style></head>\
             <body><h1>Benches of xroce</h1>{body}</body></html>\n"
        )
    }

    fn html_table(&self) -> String {
        let mut html = String::from("<div class=\"wide\"><table><tr>");
        for head in [
            "",
            "measure",
            "xroce",
            "against",
            "its figure",
            "ratio",
            "target",
            "met",
        ] {
            let _ = write!(html, "<th>{head}</th>");
        }
        html += "</tr>";
        for row in &self.rows {
            let remarks = row.remarks().join("; ");
            let _ = write!(
                html,
                "<tr><td>{}</td><td>{}, {}",
                escape(&row.id),
                escape(&row.measure),
                row.unit.name()
            );
            if !remarks.is_empty() {
                let _ = write!(
                    html,
                    "<br/><span class=\"note\">{}</span>",
                    escape(&remarks)
                );
            }
            html += "</td>";
            let class = match row.met() {
                Met::Yes => "yes",
                Met::No => "no",
                Met::NoGoal | Met::NotMeasured => "none",
            };
            let [cells @ .., met] = figures(row);
            for cell in cells {
                let _ = write!(html, "<td>{}</td>", escape(&cell));
            }
            let _ = write!(html, "<td class=\"{class}\">{}</td></tr>", escape(&met));
        }
        html + "</table></div>"
    }

    fn html_facts(&self) -> String {
        let mut html = String::from("<div class=\"wide\"><table>");
        let took = (String::from("the run took"), time(self.took));
        let facts = self.machine.facts.iter();
        let facts = facts.map(|f| (f.name.clone(), f.value.clone()));
        for (name, value) in facts.chain([took]) {
            let (name, value) = (escape(&name), escape(&value));
            let _ = write!(html, "<tr><td>{name}</td><td>{value}</td></tr>");
        }
        html + "</table></div>"
    }

    fn html_samples(&self) -> String {
        let mut html = String::from("<div class=\"wide\"><table>");
        for row in &self.rows {
            let each = row.samples.iter().map(|s| {
                let ours = row.unit.show(s.ours);
                s.peer
                    .map_or_else(|| ours.clone(), |p| format!("{ours}/{}", row.unit.show(p)))
            });
            let each = each.collect::<Vec<_>>().join(" ");
            let _ = write!(
                html,
                "<tr><td>{}</td><td>{}</td><td>{}</td></tr>",
                escape(&row.key),
                row.unit.name(),
                escape(&each)
            );
        }
        html + "</table></div>"
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::run;

    /// The page without its first line, which XML has not.
    fn xml(html: &str) -> &str {
        html.split_once('\n').unwrap().1
    }

    #[test]
    fn the_page_is_well_formed_and_loads_nothing() {
        let html = run().html();
        let page = roxmltree::Document::parse(xml(&html)).unwrap();
        let count = |name| page.descendants().filter(|n| n.has_tag_name(name)).count();
        assert_eq!(count("table"), 3);
        assert_eq!(count("h1"), 1);
        let svgs = page.descendants().filter(|n| n.tag_name().name() == "svg");
        assert_eq!(svgs.count(), 2);
        for tag in ["script", "link", "img", "iframe", "object"] {
            assert_eq!(count(tag), 0, "{tag}");
        }
        let of = |n: roxmltree::Node<'_, '_>| {
            n.attributes()
                .any(|a| matches!(a.name(), "href" | "src" | "onload"))
        };
        assert!(!page.descendants().any(of));
        let said: String = page.descendants().filter_map(|n| n.text()).collect();
        for words in [
            "Missed: D2-4096 0.82× (wanted ≥ 0.90×).",
            "SEND <1>",
            "6.18 <smp> | \"x\"",
            "90/100 91/100 90/100",
            "not measured",
        ] {
            assert!(said.contains(words), "{words}");
        }
    }

    #[test]
    fn no_text_gets_out_of_its_place() {
        let mut run = run();
        for text in ["</td><script>", "\"'&<>", "]]>", "<!--"] {
            text.clone_into(&mut run.rows[0].measure);
            text.clone_into(&mut run.rows[0].key);
            text.clone_into(&mut run.plots[0].title);
            text.clone_into(&mut run.plots[0].x.name);
            text.clone_into(&mut run.plots[0].curves[0].name);
            text.clone_into(&mut run.bars[0].parts[0].name);
            text.clone_into(&mut run.machine.facts[0].value);
            text.clone_into(&mut run.started);
            let html = run.html();
            let page = roxmltree::Document::parse(xml(&html)).unwrap();
            assert!(!page.descendants().any(|n| n.has_tag_name("script")));
        }
    }
}
