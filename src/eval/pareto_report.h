// Bytes, quality and speed of KV types as a table, a picture and a page that needs nothing else.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "eval/pareto.h"

namespace kvasir::eval {

/// What a report says of how it was taken: any texts.
using ReportSettings = std::vector<std::pair<std::string, std::string>>;

/// For a terminal: a line of names, and one for each row.
std::string pareto_table(std::span<const ParetoRow> rows);

/// SVG: mean KLD (logarithmic) against percent of f16's bytes; a label of each point has its tokens
/// per second. A KLD of 0 stands on the axis. Labels overlap nothing while there is room for that.
/// Requires: at least one row.
std::string pareto_plot(std::span<const ParetoRow> rows, std::string_view title);

/// HTML with the plot and the table in it; loads nothing. Requires: at least one row.
std::string pareto_page(std::span<const ParetoRow> rows, const ReportSettings& settings,
                        std::string_view title);

}  // namespace kvasir::eval
